"""Pool of encoder processes: sends batches to them and replaces dead ones."""

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from jaxload.errors import InputError
from jaxload.media.batch_encoder import Result
from jaxload.media.batch_queue import Batch
from jaxload.media.child import Child, DiedError, stop
from jaxload.media.encoder_process import BatchEncoded, Payload, Ready
from jaxload.media.gpus import encoder_devices

DEPTH = 2
"""Batches per encoder: one that runs, and one queued so that the GPU is not idle."""

_MAX_IDLE_DEATHS = 2  # Without a batch, since the last result of the same slot.


@dataclasses.dataclass(frozen=True)
class Finished:
    """An encoded batch and its results, one per item."""

    batch: Batch[Any]
    results: Sequence[Result]


@dataclasses.dataclass(frozen=True)
class Death:
    """Death of an encoder process, and the batches that it had not finished."""

    how: str
    running: Batch[Any] | None
    """Batch that was being encoded; None if the process was loading or idle."""

    waiting: Sequence[Batch[Any]]


@dataclasses.dataclass(eq=False)
class _Encoder:
    """An encoder process and its unfinished batches, in order."""

    child: Child
    device: str | None
    is_ready: bool = False
    batches: deque[Batch[Any]] = dataclasses.field(default_factory=deque)
    num_idle_deaths: int = 0
    """Deaths of its predecessors without a batch, since their last result."""


class EncoderPool:
    """Encoder processes, each with at most `DEPTH` unfinished batches."""

    def __init__(self, start: Callable[[str | None], Child], num_encoders: int | None):
        self._start = start
        self._encoders: list[_Encoder] = []
        try:
            for device in encoder_devices(num_encoders):
                self._encoders.append(_Encoder(start(device), device))
        except BaseException:  # An interrupt, or no memory for another process.
            self.close()
            raise
        self._seconds = 0.0
        self._waited = 0.0

    @property
    def wait_share(self) -> float:
        """Share of time after the first batch in which encoders had no batch."""
        return self._waited / self._seconds if self._seconds else 0.0

    @property
    def pipes(self) -> list[connection.Connection]:
        """Pipes of the processes, to wait for messages."""
        return [encoder.child.pipe for encoder in self._encoders]

    @property
    def is_busy(self) -> bool:
        """True if an encoder has an unfinished batch."""
        return any(encoder.batches for encoder in self._encoders)

    @property
    def has_free_slot(self) -> bool:
        """True if an encoder can take another batch."""
        return any(len(encoder.batches) < DEPTH for encoder in self._encoders)

    def give(self, batch: Batch[Any], payloads: Sequence[Payload]) -> None:
        """Sends a batch to the encoder with the fewest unfinished batches.

        Args:
            batch: Batch to return when the encoder has finished it, or has died.
            payloads: Payloads to send for its items.
        """
        encoder = min(self._encoders, key=lambda e: (len(e.batches), not e.is_ready))
        encoder.batches.append(batch)
        encoder.child.send(Batch(batch.key, tuple(payloads)))

    def listen(self, pipe: connection.Connection) -> Finished | Death | None:
        """Receives a message from the encoder that has this pipe.

        A dead encoder is replaced. Returns None if an encoder reports that it is ready.
        """
        (encoder,) = (e for e in self._encoders if e.child.pipe is pipe)
        try:
            message = encoder.child.receive()
        except DiedError as error:
            return self._replace(encoder, str(error))
        match message:
            case Ready():
                encoder.is_ready = True
                return None
            case BatchEncoded(results=results, seconds=seconds, waited=waited):
                encoder.num_idle_deaths = 0
                self._seconds += seconds
                self._waited += waited
                return Finished(encoder.batches.popleft(), results)
            case _:
                raise AssertionError(message)

    def close(self) -> None:
        """Ends all processes."""
        for encoder in self._encoders:
            encoder.child.terminate()
        stop([encoder.child for encoder in self._encoders])

    def _replace(self, dead: _Encoder, how: str) -> Death:
        """Starts a process in place of a dead one; gives up a GPU on which two died."""
        stop([dead.child])
        running = dead.batches.popleft() if dead.is_ready and dead.batches else None
        num_idle_deaths = dead.num_idle_deaths + (running is None)
        index = self._encoders.index(dead)
        if num_idle_deaths < _MAX_IDLE_DEATHS:
            child = self._start(dead.device)
            alive = _Encoder(child, dead.device, num_idle_deaths=num_idle_deaths)
            self._encoders[index] = alive
        elif len(self._encoders) > 1:
            del self._encoders[index]
        else:
            raise InputError(
                f"encoder processes die at their start or while idle ({how}); run with "
                "--workers 0 to see the error; finished parts are kept"
            )
        return Death(how, running, tuple(dead.batches))
