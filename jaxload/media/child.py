"""Child process that is connected by a pipe."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

# Spawn and not fork: a fork copies no threads, and JAX and decoders rely on theirs.
_PROCESSES = multiprocessing.get_context("spawn")
_STOP_SECONDS = 5.0


class DiedError(Exception):
    """Raised when a child process is dead; the message says how it died."""


class Child:
    """A process that runs `target(pipe, *arguments)`, and the pipe to it."""

    def __init__(self, target: Callable[..., None], *arguments: Any):
        self.pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(
            target=_run, args=(target, theirs, *arguments), daemon=True
        )
        # Blocks Ctrl-C in the new process too, which would print a traceback while it
        # imports modules. The main process handles interrupts and ends its children.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()  # Otherwise `recv` would not notice the end of the process.

    def send(self, message: Any) -> None:
        """Sends a message, which is lost if the process is dead."""
        # Not an error here, because `receive` reports the death.
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def receive(self) -> Any:
        """Returns the next message; if the message is an exception, raises it.

        Raises:
            DiedError: The process is dead.
        """
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):  # OSError: killed in the middle of a message.
            self._process.join(_STOP_SECONDS)
            code = self._process.exitcode
            if code is not None and code < 0:
                raise DiedError(f"killed by {signal.Signals(-code).name}") from None
            raise DiedError(f"exit code {code}") from None
        if isinstance(message, Exception):
            raise message
        return message

    def terminate(self) -> None:
        """Asks the process to end at once."""
        self._process.terminate()

    def stop(self) -> None:
        """Closes the pipe, waits for the process to end, and kills it if it does not.

        A process that waits for a message ends when the pipe is closed.
        """
        self.pipe.close()
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _run(
    target: Callable[..., None], pipe: connection.Connection, *arguments: Any
) -> None:
    # The pipe breaks if the main process has ended, or has stopped this process.
    with contextlib.suppress(EOFError):
        target(pipe, *arguments)
