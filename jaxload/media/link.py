"""Messages between workers and the main process, and the worker's end of the pipe."""

import dataclasses
from collections import deque
from multiprocessing import connection
from typing import Any

from jaxload.media.batch_encoder import Result
from jaxload.media.encode_step import Ticket
from jaxload.media.inbox import Inbox, PipeClosedError
from jaxload.shapes.shape import Shape

# --- From a worker ---


@dataclasses.dataclass(frozen=True)
class FileDone:
    """Reports that a file is finished, for the progress bar."""

    number: int
    """Number of the file's task."""


@dataclasses.dataclass(frozen=True)
class WantsTask:
    """Requests another task; earlier tasks may still wait for results."""


@dataclasses.dataclass(frozen=True)
class TaskDone:
    """Reports that a task is finished."""

    number: int


@dataclasses.dataclass(frozen=True)
class WantsBuffer:
    """Requests a buffer in shared memory; the worker waits for it."""

    num_bytes: int


@dataclasses.dataclass(frozen=True)
class WantsResult:
    """Reports that the worker decodes nothing until it gets a result."""


@dataclasses.dataclass(frozen=True)
class ReleasesBuffer:
    """Returns the buffer that was granted last, without a clip."""


@dataclasses.dataclass(frozen=True)
class ClipReady:
    """Submits a clip for encoding; its pixels are in the buffer granted last."""

    ticket: int
    name: str
    shape: Shape


@dataclasses.dataclass(frozen=True)
class CaptionReady:
    """Submits a caption for encoding."""

    ticket: int
    name: str
    caption: str


# --- To a worker ---


@dataclasses.dataclass(frozen=True)
class Assigned:
    """Assigns a task to the worker."""

    number: int
    task: Any


@dataclasses.dataclass(frozen=True)
class BufferGranted:
    """Grants the requested buffer, which starts at `offset` of the shared memory."""

    offset: int


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Delivers the result of a clip or a caption."""

    ticket: int
    result: Result


class Link:
    """A worker's end of its pipe to the main process."""

    def __init__(self, pipe: connection.Connection):
        self._pipe = pipe
        self._inbox = Inbox(pipe)
        self._tickets: dict[int, Ticket] = {}
        self._num_tickets = 0
        self.tasks: deque[Assigned] = deque()
        """Tasks that are assigned and not started."""

    def send(self, message: Any) -> None:
        """Sends a message to the main process.

        Raises:
            PipeClosedError: The main process has closed the pipe or has died.
        """
        try:
            self._pipe.send(message)
        except OSError as error:
            raise PipeClosedError("the main process has ended") from error

    def new_ticket(self) -> tuple[int, Ticket]:
        """Returns a ticket, and the number that identifies the ticket in messages."""
        self._num_tickets += 1
        ticket = self._tickets[self._num_tickets] = Ticket()
        return self._num_tickets, ticket

    def request_buffer(self, num_bytes: int) -> int:
        """Requests a buffer, waits for it, and returns its offset."""
        self.send(WantsBuffer(num_bytes))
        while not isinstance(message := self.wait(), BufferGranted):
            pass
        return message.offset

    def wait_for_result(self) -> None:
        """Tells the main process that this worker waits, and waits for a result."""
        self.send(WantsResult())
        while not isinstance(self.wait(), Encoded):
            pass

    def wait(self) -> Any:
        """Waits for a message and returns it.

        A task is also added to `tasks`, and a result is also stored in its ticket.

        Raises:
            PipeClosedError: The main process has closed the pipe or has died.
        """
        message = self._inbox.get()
        match message:
            case Assigned():
                self.tasks.append(message)
            case Encoded(ticket=ticket, result=result):
                self._tickets.pop(ticket).result = result
        return message

    def poll(self) -> None:
        """Stores all tasks and results that have arrived, without waiting."""
        while not self._inbox.is_empty:
            self.wait()
