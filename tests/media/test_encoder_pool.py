"""Tests of jaxload.media.encoder_pool and of its processes."""

import functools
import os
import signal
from multiprocessing import connection

import numpy as np
import pytest

from jaxload.codecs.codec import load_codec
from jaxload.errors import InputError
from jaxload.media.batch_encoder import BatchEncoder
from jaxload.media.batch_queue import Batch
from jaxload.media.child import Child, DiedError, stop
from jaxload.media.encoder_pool import Death, EncoderPool, Finished
from jaxload.media.encoder_process import Payload, serve
from jaxload.media.remote_step import Offload
from jaxload.media.shared_memory import SharedMemory


class Wide:
    """Text encoder whose batches and results are larger than a pipe's buffer."""

    name = "wide"
    dim = 64
    batch_size = 8

    def encode(self, caption: str) -> np.ndarray:
        """Returns an embedding of 1 MB in float32."""
        return np.full((4_000, self.dim), len(caption), np.float32)

    def encode_batch(self, captions: list[str]) -> list[np.ndarray]:
        """Returns an embedding for each caption."""
        return [self.encode(caption) for caption in captions]


def start(device: str | None) -> Child:
    encoder = BatchEncoder(functools.partial(load_codec, "haar"), Wide)
    offload = Offload(clips=False, captions=True)
    return Child(serve, encoder, offload, SharedMemory(4096), device)


def listen(pool: EncoderPool) -> Finished | Death | None:
    ready = connection.wait(pool.pipes, timeout=60)
    assert ready, "no message of an encoder"
    return pool.listen(next(pipe for pipe in pool.pipes if pipe in ready))


def test_batches_and_results_larger_than_pipes_block_nobody():
    pool = EncoderPool(start, 1)
    batch = Batch(None, (Payload("a.png", "x" * 100_000),) * Wide.batch_size)
    try:
        assert listen(pool) is None  # It is ready.
        for _ in range(2):
            pool.give(batch, batch.items)
        for _ in range(6):
            finished = listen(pool)
            assert isinstance(finished, Finished)
            for text in finished.results:
                assert isinstance(text, np.ndarray)
                assert len(text) == 4_000
            pool.give(batch, batch.items)
        assert 0.0 <= pool.wait_share < 1.0
    finally:
        pool.close()


def kill(pool: EncoderPool, index: int) -> None:
    pid = pool._encoders[index].child._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def wait_for_death(pool: EncoderPool) -> None:
    while not isinstance(listen(pool), Death):
        pass


def test_encoders_that_are_killed_while_idle_are_replaced():
    pool = EncoderPool(start, 2)
    try:
        for index in (0, 1):  # One death each is no reason to give up.
            kill(pool, index)
            wait_for_death(pool)
        assert len(pool.pipes) == 2
        kill(pool, 0)
        wait_for_death(pool)
        assert len(pool.pipes) == 1  # The other encoder goes on.
        kill(pool, 0)
        with pytest.raises(InputError, match="die at their start or while idle"):
            wait_for_death(pool)
    finally:
        pool.close()


def _send_much(pipe: connection.Connection) -> None:
    pipe.send(bytes(50_000_000))


def test_a_child_killed_in_the_middle_of_a_message_is_dead():
    child = Child(_send_much)
    assert connection.wait([child.pipe], timeout=60)  # The pipe is full, it blocks.
    assert child._process.pid is not None
    os.kill(child._process.pid, signal.SIGKILL)
    with pytest.raises(DiedError, match="SIGKILL"):
        child.receive()
    stop([child])


def test_a_process_that_cannot_start_ends_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    started: list[Child] = []

    def start_once(device: str | None) -> Child:
        if started:
            raise OSError("no memory for a process")
        started.append(start(device))
        return started[0]

    with pytest.raises(OSError, match="no memory"):
        EncoderPool(start_once, 2)
    assert started[0]._process.exitcode is not None
