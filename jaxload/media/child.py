"""Child processes that are connected by pipes."""

import contextlib
import dataclasses
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from jaxload.child_signals import children_ignore_interrupts
from jaxload.errors import InputError
from jaxload.media.inbox import PipeClosedError

# Spawn and not fork: a fork copies no threads, and JAX and decoders rely on theirs.
_PROCESSES = multiprocessing.get_context("spawn")
_STOP_SECONDS = 5.0


class DiedError(Exception):
    """Raised when a child process is dead; the message says how it died."""


class ChildError(Exception):
    """Raised for an exception of a child process that is no InputError.

    The message holds the exception's type and message, a note its traceback.
    """


@dataclasses.dataclass(frozen=True)
class _Failed:
    """Reports an exception, as text, because not every exception can be pickled."""

    message: str
    trace: str
    is_input_error: bool

    @classmethod
    def of(cls, error: Exception) -> "_Failed":
        is_input_error = isinstance(error, InputError)
        message = str(error) if is_input_error else f"{type(error).__name__}: {error}"
        return cls(message, traceback.format_exc(), is_input_error)

    def error(self) -> Exception:
        make = InputError if self.is_input_error else ChildError
        error = make(self.message)
        error.add_note(self.trace)
        return error


class Child:
    """A process that runs `target(pipe, *arguments)`, and the pipe to it."""

    def __init__(self, target: Callable[..., None], *arguments: Any):
        self.pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(
            target=_run, args=(target, theirs, *arguments), daemon=True
        )
        with children_ignore_interrupts():
            self._process.start()
        theirs.close()  # Otherwise `recv` would not notice the end of the process.

    def send(self, message: Any) -> None:
        """Sends a message, which is lost if the process is dead."""
        # Not an error here, because `receive` reports the death.
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def receive(self) -> Any:
        """Returns the next message.

        Raises:
            InputError: The process raised this error.
            ChildError: The process raised another exception.
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
        if isinstance(message, _Failed):
            raise message.error()
        return message

    def terminate(self) -> None:
        """Asks the process to end at once."""
        self._process.terminate()

    def release(self) -> None:
        """Closes the pipe, which ends a process that waits for a message."""
        self.pipe.close()

    def reap(self, seconds: float) -> None:
        """Waits for the process to end, and kills it if it does not."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def stop(children: Sequence[Child]) -> None:
    """Releases all processes, waits for them together, and kills those that stay."""
    for child in children:
        child.release()
    end = time.monotonic() + _STOP_SECONDS
    for child in children:
        child.reap(max(0.0, end - time.monotonic()))


def _run(
    target: Callable[..., None], pipe: connection.Connection, *arguments: Any
) -> None:
    try:
        target(pipe, *arguments)
    except PipeClosedError:  # The main process has ended, or has released this process.
        pass
    except Exception as error:
        with contextlib.suppress(OSError):  # The main process has ended.
            pipe.send(_Failed.of(error))
