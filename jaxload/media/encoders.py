"""Collects clips and captions of all workers into batches for encoder processes.

This runs in the main process. Each batch holds clips of one shape, from any parts.

Before a worker decodes a clip, it requests a buffer in shared memory. While clips that
wait for an encoder fill the memory, the worker gets no buffer and does not decode. This
bounds the memory even if encoding is slower than decoding.
"""

import dataclasses
import os
from collections import deque
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

from jaxload.console import Console
from jaxload.media.batch_encoder import BatchEncoder, Failure, Key, Result
from jaxload.media.batch_queue import Batch, BatchQueue
from jaxload.media.child import Child
from jaxload.media.encoder_pool import DEPTH, Death, EncoderPool, Finished
from jaxload.media.encoder_process import serve
from jaxload.media.link import (
    BufferGranted,
    CaptionReady,
    ClipReady,
    Encoded,
    ReleasesBuffer,
    WantsBuffer,
    WantsResult,
)
from jaxload.media.remote_step import Offload
from jaxload.media.shared_memory import Allocator, SharedMemory, aligned
from jaxload.shapes.shape import Shape

_MAX_DEATHS = 2
_NUM_NAMES = 3
_MEMORY_SHARE = 0.25  # Of the machine's memory, for clips not encoded yet.


@dataclasses.dataclass(eq=False)
class _Item:
    """A clip or a caption that is submitted and not encoded yet."""

    worker: Child
    ticket: int
    key: Key
    name: str
    """Name of the file, for messages."""

    payload: Any
    """Offset of the clip in shared memory, or text of the caption."""

    num_deaths: int = 0
    """Number of encoders that died while they encoded the item."""


class Encoders:
    """Encoder processes, the shared memory for clips, and the queue of batches."""

    def __init__(
        self,
        encoder: BatchEncoder,
        offload: Offload,
        shapes: Sequence[Shape],
        *,
        num_encoders: int,
        num_workers: int,
        console: Console,
    ):
        shapes = shapes if offload.clips else ()
        num_bytes = memory_size(encoder, shapes, num_encoders, num_workers)
        self.memory = SharedMemory(num_bytes)
        self._free = Allocator(num_bytes)
        self._queue: BatchQueue[_Item] = BatchQueue(encoder.size)
        self._wanted: deque[tuple[Child, int]] = deque()
        """Workers that wait for a buffer, in order, each with its number of bytes."""
        self._waiting: set[Child] = set()
        """Workers that decode nothing until they get a result."""
        self._decoding: dict[Child, int] = {}
        """Offset of the buffer into which each worker decodes."""
        self._deadly: set[str] = set()
        self._console = console

        def start(device: str | None) -> Child:
            return Child(serve, encoder, offload, self.memory, device)

        self._pool = EncoderPool(start, num_encoders)

    @property
    def pipes(self) -> list[connection.Connection]:
        """Pipes of the encoder processes, to wait for messages."""
        return self._pool.pipes

    @property
    def wait_share(self) -> float:
        """Share of time after the first batch in which encoders had no batch."""
        return self._pool.wait_share

    @property
    def num_bytes_used(self) -> int:
        """Bytes of shared memory that hold clips."""
        return self._free.num_used

    def handle(self, worker: Child, message: Any) -> None:
        """Handles a message from a worker."""
        self._waiting.discard(worker)
        if isinstance(message, WantsBuffer):
            self._wanted.append((worker, message.num_bytes))
        elif isinstance(message, WantsResult):
            self._waiting.add(worker)
        elif isinstance(message, ReleasesBuffer):
            self._free.free(self._decoding.pop(worker))
        elif isinstance(message, ClipReady):
            offset = self._decoding.pop(worker)
            ticket, name = message.ticket, message.name
            self._add(_Item(worker, ticket, message.shape, name, offset))
        else:
            assert isinstance(message, CaptionReady)
            ticket, name = message.ticket, message.name
            self._add(_Item(worker, ticket, None, name, message.caption))

    def forget(self, worker: Child) -> None:
        """Drops the requests of a dead worker and frees its buffers."""
        if worker in self._decoding:
            self._free.free(self._decoding.pop(worker))
        self._waiting.discard(worker)
        self._wanted = deque(w for w in self._wanted if w[0] is not worker)
        for item in self._queue.discard(lambda item: item.worker is worker):
            self._free_item(item)

    def advance(self, decoding: Sequence[Child]) -> None:
        """Grants buffers and sends batches to encoders.

        `decoding` are the workers that have files left to decode. If all of them wait
        for a buffer or a result, no batch can fill up, so a partial batch is sent.
        """
        self._grant()
        is_stuck = self._waiting.union(w for w, _ in self._wanted).issuperset(decoding)
        while self._pool.has_free_slot:
            batch = self._queue.take()
            # While an encoder is busy, its results may let workers continue, and these
            # may then fill the batch.
            if batch is None and is_stuck and not (decoding and self._pool.is_busy):
                batch = self._queue.take_partial()
            if batch is None:
                return
            self._pool.give(batch, [item.payload for item in batch.items])

    def listen(self, pipe: connection.Connection) -> None:
        """Handles a message from the encoder that has this pipe."""
        message = self._pool.listen(pipe)
        if isinstance(message, Finished):
            for item, result in zip(message.batch.items, message.results, strict=True):
                self._finish(item, result)
        elif isinstance(message, Death):
            self._blame(message)

    def close(self) -> None:
        """Ends the encoder processes and frees the shared memory."""
        self._pool.close()
        self.memory.close()

    def _add(self, item: _Item) -> None:
        if item.name in self._deadly:
            self._finish(item, Failure("its file kills encoders", deadly=True))
        else:
            self._queue.add(item.key, item)

    def _grant(self) -> None:
        # First come, first served: otherwise small clips could starve a large one.
        while self._wanted:
            worker, num_bytes = self._wanted[0]
            offset = self._free.allocate(num_bytes)
            if offset is None:
                return
            self._wanted.popleft()
            self._decoding[worker] = offset
            worker.send(BufferGranted(offset))

    def _finish(self, item: _Item, result: Result) -> None:
        self._free_item(item)
        self._waiting.discard(item.worker)
        item.worker.send(Encoded(item.ticket, result))

    def _free_item(self, item: _Item) -> None:
        if item.key is not None:
            self._free.free(item.payload)

    def _blame(self, death: Death) -> None:
        """Requeues the items of a dead encoder, each as its own batch.

        If an encoder dies again, its batch has the only item to blame. After
        `_MAX_DEATHS` deaths, the file of that item is skipped.
        """
        for batch in reversed(death.waiting):
            self._queue.put_back(batch)
        items = death.running.items if death.running else ()
        self._say(death.how, [item.name for item in items])
        for item in reversed(items):
            item.num_deaths += 1
            if len(items) == 1 and item.num_deaths >= _MAX_DEATHS:
                self._give_up(item.name)
                self._finish(item, Failure(death.how, deadly=True))
            else:
                self._queue.put_back(Batch(item.key, (item,)))

    def _give_up(self, name: str) -> None:
        self._deadly.add(name)
        for item in self._queue.discard(lambda item: item.name == name):
            self._finish(item, Failure("its file kills encoders", deadly=True))

    def _say(self, how: str, names: Sequence[str]) -> None:
        names = list(dict.fromkeys(names))
        where = ", ".join(names[:_NUM_NAMES]) or "its start"
        more = len(names) - _NUM_NAMES
        others = f" and {more} more" if more > 0 else ""
        self._console.say(f"an encoder died ({how}) at {where}{others}")


def memory_size(
    encoder: BatchEncoder, shapes: Sequence[Shape], num_encoders: int, num_workers: int
) -> int:
    """Returns the number of bytes of shared memory for clips.

    The memory holds one clip per worker, `DEPTH` batches per encoder, and one partial
    batch per shape. It is at most a quarter of the machine's memory, unless one clip
    per worker and a single batch need more.
    """
    if not shapes:
        return aligned(1)
    clips = {shape: aligned(3 * _num_pixels(shape)) for shape in shapes}
    batches = [encoder.size(shape) * num_bytes for shape, num_bytes in clips.items()]
    least = num_workers * max(clips.values()) + max(batches)
    enough = least + (num_encoders * DEPTH - 1) * max(batches) + sum(batches)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(least, min(enough, int(_MEMORY_SHARE * machine)))


def _num_pixels(shape: Shape) -> int:
    frames, height, width = shape.pixels
    return frames * height * width
