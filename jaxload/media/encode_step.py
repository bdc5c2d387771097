"""Encode step of the pipeline `decode -> encode -> write`, as a part sees it.

A part submits each clip and each caption to the step and gets a ticket, which holds the
result once the item is encoded. There are two implementations:

- `LocalStep` encodes in the process that decodes. For a codec that computes on the CPU
  this is faster, because every worker encodes.
- `jaxload.media.remote_step.RemoteStep` sends the items to an encoder process.
"""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from jaxload.media.batch_encoder import BatchEncoder, Key, Result
from jaxload.media.batch_queue import Batch, BatchQueue
from jaxload.media.memory_limit import PIXELS_SHARE, memory_limit
from jaxload.shapes.shape import Shape

MAX_UNWRITTEN = 512
"""Upper bound on the clips and ends of files that one process has not written yet.

Records are written in order, so a result waits in memory for the results before it. A
higher bound lets batches of rare shapes fill up, and costs up to one latent per clip.
The part that decodes may take half of it, which earlier parts leave free.
"""


class Ticket:
    """Future for one submitted item; `result` is None until the item is encoded."""

    result: Result | None = None


@runtime_checkable
class EncodeStep(Protocol):
    """Encodes clips and captions asynchronously, and completes them in any order."""

    num_unwritten: int
    """Clips and ends of files that this process has not written yet.

    All `PartWriter`s of the process update this number.
    """

    def open(self) -> None:
        """Loads the plugins that run in this process, unless they are loaded."""
        ...

    def buffer(self, shape: Shape) -> np.ndarray:
        """Returns a buffer `[P, Y, X, 3]` for the pixels of the next clip.

        Blocks while the memory for clips is full, if that memory is limited.
        """
        ...

    def release(self) -> None:
        """Frees the last buffer if its clip was not submitted."""
        ...

    def submit_clip(self, name: str, shape: Shape, video: np.ndarray) -> Ticket:
        """Submits the last buffer for encoding; `name` is the file of the clip."""
        ...

    def submit_caption(self, name: str, caption: str) -> Ticket:
        """Submits a caption for encoding; `name` is the captioned file."""
        ...

    def wait(self) -> None:
        """Blocks until another result is available.

        The caller submits nothing meanwhile, so a batch may have to run partly filled.
        """
        ...


class _Item(NamedTuple):
    ticket: Ticket
    name: str
    payload: Any


class LocalStep:
    """Encode step that encodes in this process, each batch as soon as it is full.

    Clips that wait for their batch take at most `max_bytes`, or one clip: before
    another clip would take more, the oldest batches are encoded partly filled.
    """

    def __init__(self, encoder: BatchEncoder, max_bytes: int | None = None):
        self.num_unwritten = 0
        self.num_bytes = 0
        """Bytes of the clips that wait for their batch."""
        self._max_bytes = max_bytes or int(PIXELS_SHARE * memory_limit())
        self._encoder = encoder
        self._queue: BatchQueue[_Item] = BatchQueue(encoder.size)

    def open(self) -> None:
        """Loads the codec and the text encoder."""
        self._encoder.load_codec()
        self._encoder.load_text_encoder()

    def buffer(self, shape: Shape) -> np.ndarray:
        """Allocates a buffer, after encoding clips if the memory is full."""
        size = (*shape.pixels, 3)
        while self.num_bytes and self.num_bytes + math.prod(size) > self._max_bytes:
            batch = self._queue.take_partial(clips_only=True)
            assert batch is not None
            self._encode(batch)
        return np.empty(size, np.uint8)

    def release(self) -> None:
        """Does nothing, because Python frees the buffer."""

    def submit_clip(self, name: str, shape: Shape, video: np.ndarray) -> Ticket:
        """Encodes the clip, or keeps it until the batch of its shape is full."""
        self.num_bytes += video.nbytes
        return self._submit(shape, name, video)

    def submit_caption(self, name: str, caption: str) -> Ticket:
        """Encodes the caption, or keeps it until the batch of captions is full."""
        return self._submit(None, name, caption)

    def wait(self) -> None:
        """Encodes the oldest batch, even if it is not full."""
        batch = self._queue.take_partial()
        assert batch is not None, "nothing to wait for"
        self._encode(batch)

    def _submit(self, key: Key, name: str, payload: Any) -> Ticket:
        item = _Item(Ticket(), name, payload)
        self._queue.add(key, item)
        while batch := self._queue.take():
            self._encode(batch)
        return item.ticket

    def _encode(self, batch: Batch[_Item]) -> None:
        payloads = [item.payload for item in batch.items]
        names = [item.name for item in batch.items]
        results = self._encoder.encode(batch.key, payloads, names)
        if batch.key is not None:
            self.num_bytes -= sum(video.nbytes for video in payloads)
        for item, result in zip(batch.items, results, strict=True):
            item.ticket.result = result
