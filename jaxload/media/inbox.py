"""Inbox of a child process: receives messages even while the process is busy."""

import queue
import threading
from multiprocessing import connection
from typing import Any


class PipeClosedError(Exception):
    """Raised when the other end of a pipe is closed.

    Not an OSError, which a part would take for a problem with a media file.
    """


class _End:
    """Last entry of an inbox, with the error that ended it."""

    def __init__(self, error: BaseException):
        self.error = error


class Inbox:
    """Messages of a pipe, received by a thread.

    Without the thread, the pipe could fill up while the process is busy. The main
    process would then block in `send` and serve no other process.
    """

    def __init__(self, pipe: connection.Connection):
        self._pipe = pipe
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def is_empty(self) -> bool:
        """True if no message has arrived that `get` has not returned."""
        return self._messages.empty()

    def get(self) -> Any:
        """Waits for the next message and returns it.

        Raises:
            PipeClosedError: The other end is closed.
            BaseException: The error with which receiving ended, such as a message that
                cannot be unpickled.
        """
        message = self._messages.get()
        if not isinstance(message, _End):
            return message
        self._messages.put(message)  # For the next call.
        if isinstance(message.error, (EOFError, OSError)):
            raise PipeClosedError("the main process has ended") from message.error
        raise message.error

    def _receive(self) -> None:
        try:
            while True:
                self._messages.put(self._pipe.recv())
        except BaseException as error:  # Raised by `get`, in the thread that waits.
            self._messages.put(_End(error))
