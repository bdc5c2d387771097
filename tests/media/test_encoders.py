"""Tests of jaxload.media.encoders: bounded memory, and batches that are not full."""

import functools
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

import pytest

from jaxload.codecs.codec import load_codec
from jaxload.codecs.text_encoder import load_text_encoder
from jaxload.console import Console
from jaxload.media.batch_encoder import BatchEncoder
from jaxload.media.child import Child
from jaxload.media.encoders import Encoders, memory_size
from jaxload.media.link import (
    BufferGranted,
    ClipReady,
    Encoded,
    ReleasesBuffer,
    WantsBuffer,
)
from jaxload.media.remote_step import Offload
from jaxload.shapes.shape import Shape

SHAPE = Shape(3, 8, 8)
NUM_BYTES = 9 * 64 * 64 * 3
CODEC = "tests.media.codecs:Batched"  # In batches of three.
ENCODER = BatchEncoder(
    functools.partial(load_codec, CODEC),
    functools.partial(load_text_encoder, "hashed-ngrams", 8),
)


class Worker(Child):
    """Simulated worker that records the messages sent to it."""

    def __init__(self):
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)

    def offsets(self) -> list[int]:
        return [m.offset for m in self.messages if isinstance(m, BufferGranted)]

    def results(self) -> list[int]:
        return [m.ticket for m in self.messages if isinstance(m, Encoded)]


@pytest.fixture
def encoders() -> Iterator[Encoders]:
    found = Encoders(
        ENCODER,
        Offload.of(ENCODER),
        [SHAPE],
        num_encoders=1,
        num_workers=2,
        console=Console(quiet=True),
    )
    yield found
    found.close()


def submit(encoders: Encoders, worker: Worker, ticket: int) -> None:
    """Requests a buffer, gets it and submits a clip."""
    encoders.handle(worker, WantsBuffer(NUM_BYTES))
    encoders.advance([worker])
    encoders.memory.array(worker.offsets()[-1], (NUM_BYTES,))[:] = ticket
    encoders.handle(worker, ClipReady(ticket, "a", SHAPE))


def listen(encoders: Encoders, worker: Worker, num_results: int) -> None:
    while len(worker.results()) < num_results:
        assert connection.wait(encoders.pipes, timeout=60)
        encoders.listen(encoders.pipes[0])


def test_a_slow_encoder_stops_decoding(encoders: Encoders):
    """Memory holds 1 clip for each of 2 workers, 2 batches, and 1 partial batch."""
    most = 2 + 3 * 3
    assert memory_size(ENCODER, [SHAPE], 1, 2) == most * 110_592
    worker = Worker()
    # Messages are not read, as if the encoder never finished a batch.
    for ticket in range(most):
        submit(encoders, worker, ticket)
    encoders.handle(worker, WantsBuffer(NUM_BYTES))
    encoders.advance([worker])
    assert len(worker.offsets()) == most
    assert encoders._free.num_used == most * 110_592
    listen(encoders, worker, 3)
    encoders.advance([worker])
    assert len(worker.offsets()) == most + 1


def test_a_batch_is_run_before_it_is_full_when_no_clip_can_come(encoders: Encoders):
    worker, other = Worker(), Worker()
    submit(encoders, worker, 1)
    encoders.advance([other])  # It may submit the next.
    assert not encoders._pool.is_busy
    encoders.advance([])
    assert encoders._pool.is_busy
    listen(encoders, worker, 1)
    assert encoders._free.num_used == 0


def test_a_dead_worker_gives_all_its_memory_back(encoders: Encoders):
    worker, other = Worker(), Worker()
    for ticket in range(4):
        submit(encoders, worker, ticket)
    encoders.handle(worker, WantsBuffer(NUM_BYTES))
    submit(encoders, other, 9)
    encoders.forget(worker)
    listen(encoders, worker, 3)  # They were with the encoder.
    encoders.advance([])
    listen(encoders, other, 1)
    assert encoders._free.num_used == 0


def test_memory_that_is_not_needed_goes_back(encoders: Encoders):
    worker = Worker()
    encoders.handle(worker, WantsBuffer(NUM_BYTES))
    encoders.advance([worker])
    encoders.handle(worker, ReleasesBuffer())
    assert encoders._free.num_used == 0
