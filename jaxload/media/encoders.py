"""Collects clips and captions of all workers into batches for encoder processes.

This runs in the main process. Each batch holds clips of one shape, from any parts.

Before a worker decodes a clip, it requests a buffer in shared memory. While clips that
wait for an encoder fill the memory, the worker gets no buffer and does not decode. This
bounds the memory even if encoding is slower than decoding.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

from jaxload.console import Console
from jaxload.media.batch_encoder import BatchEncoder, Failure, Key, Result
from jaxload.media.batch_queue import Batch, BatchQueue
from jaxload.media.captions import shown
from jaxload.media.child import Child
from jaxload.media.encoder_pool import DEPTH, Death, EncoderPool, Finished
from jaxload.media.encoder_process import Payload, serve
from jaxload.media.gpus import encoder_devices
from jaxload.media.link import (
    BufferGranted,
    CaptionReady,
    ClipReady,
    Encoded,
    ReleasesBuffer,
    WantsBuffer,
    WantsResult,
)
from jaxload.media.memory_limit import PIXELS_SHARE, memory_limit
from jaxload.media.remote_step import Offload
from jaxload.media.shared_memory import Allocator, SharedMemory, aligned
from jaxload.shapes.shape import Shape

_MAX_DEATHS = 2
_NUM_NAMES = 3


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
        num_encoders: int | None,
        num_workers: int,
        console: Console,
    ):
        shapes = shapes if offload.clips else ()
        num_processes = len(encoder_devices(num_encoders))
        num_bytes = memory_size(encoder, shapes, num_processes, num_workers)
        self.memory = SharedMemory(num_bytes)
        self._free = Allocator(num_bytes)
        self._queue: BatchQueue[_Item] = BatchQueue(encoder.size)
        self._wanted: deque[tuple[Child, int]] = deque()
        """Workers that wait for a buffer, in order, each with its number of bytes."""
        self._waiting: set[Child] = set()
        """Workers that decode nothing until they get a result."""
        self._decoding: dict[Child, int] = {}
        """Offset of the buffer into which each worker decodes."""
        self._poison: set[str] = set()
        """Names of files whose clips kill encoders."""
        self._console = console

        def start(device: str | None) -> Child:
            return Child(serve, encoder, offload, self.memory, device)

        try:
            self._pool = EncoderPool(start, num_encoders)
        except BaseException:  # An interrupt, or no memory for another process.
            self.memory.close()
            raise

    @property
    def pipes(self) -> list[connection.Connection]:
        """Pipes of the encoder processes, to wait for messages."""
        return self._pool.pipes

    @property
    def wait_share(self) -> float:
        """Share of time after the first batch in which encoders had no batch."""
        return self._pool.wait_share

    def handle(self, worker: Child, message: Any) -> None:
        """Handles a message from a worker."""
        self._waiting.discard(worker)
        match message:
            case WantsBuffer(num_bytes=num_bytes):
                self._wanted.append((worker, num_bytes))
            case WantsResult():
                self._waiting.add(worker)
            case ReleasesBuffer():
                self._free.free(self._decoding.pop(worker))
            case ClipReady(ticket=ticket, name=name, shape=shape):
                offset = self._decoding.pop(worker)
                self._add(_Item(worker, ticket, shape, name, offset))
            case CaptionReady(ticket=ticket, name=name, caption=caption):
                self._add(_Item(worker, ticket, None, name, caption))
            case _:
                raise AssertionError(message)

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
            payloads = [Payload(item.name, item.payload) for item in batch.items]
            self._pool.give(batch, payloads)

    def listen(self, pipe: connection.Connection) -> None:
        """Handles a message from the encoder that has this pipe."""
        match self._pool.listen(pipe):
            case Finished(batch=batch, results=results):
                for item, result in zip(batch.items, results, strict=True):
                    self._finish(item, result)
            case Death() as death:
                self._blame(death)

    def close(self) -> None:
        """Ends the encoder processes and frees the shared memory."""
        self._pool.close()
        self.memory.close()

    def _add(self, item: _Item) -> None:
        if item.name in self._poison:
            self._finish(item, Failure("its file kills encoders", is_poison=True))
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
                self._finish(item, Failure(death.how, is_poison=True))
            else:
                self._queue.put_back(Batch(item.key, (item,)))

    def _give_up(self, name: str) -> None:
        self._poison.add(name)
        for item in self._queue.discard(lambda item: item.name == name):
            self._finish(item, Failure("its file kills encoders", is_poison=True))

    def _say(self, how: str, names: Sequence[str]) -> None:
        names = list(dict.fromkeys(names))
        where = ", ".join(map(shown, names[:_NUM_NAMES])) or "its start"
        more = len(names) - _NUM_NAMES
        others = f" and {more} more" if more > 0 else ""
        self._console.say(f"an encoder died ({how}) at {where}{others}")


def memory_size(
    encoder: BatchEncoder, shapes: Sequence[Shape], num_encoders: int, num_workers: int
) -> int:
    """Returns the number of bytes of shared memory for clips.

    The memory holds one clip per worker, `DEPTH` batches per encoder, and one partial
    batch per shape. It is at most a quarter of the memory limit, unless one clip per
    worker and a single batch need more.
    """
    if not shapes:
        return aligned(1)
    clips = {shape: aligned(3 * _num_pixels(shape)) for shape in shapes}
    batches = [encoder.size(shape) * num_bytes for shape, num_bytes in clips.items()]
    least = num_workers * max(clips.values()) + max(batches)
    enough = least + (num_encoders * DEPTH - 1) * max(batches) + sum(batches)
    return max(least, min(enough, int(PIXELS_SHARE * memory_limit())))


def _num_pixels(shape: Shape) -> int:
    frames, height, width = shape.pixels
    return frames * height * width
