"""Main function of an encoder process, which encodes batches while workers decode."""

import contextlib
import dataclasses
import os
import queue
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

from jaxload.media.batch_encoder import BatchEncoder, Result
from jaxload.media.batch_queue import Batch
from jaxload.media.remote_step import Offload
from jaxload.media.shared_memory import SharedMemory


@dataclasses.dataclass(frozen=True)
class Ready:
    """Reports that the plugins of an encoder process are loaded."""


@dataclasses.dataclass(frozen=True)
class BatchEncoded:
    """Results of a batch, and how the process spent its time, in seconds."""

    results: Sequence[Result]
    seconds: float
    """Time between the ends of the previous batch and this one; 0 for the first."""

    waited: float
    """Part of `seconds` in which the process had no batch."""


def serve(
    pipe: connection.Connection,
    encoder: BatchEncoder,
    offload: Offload,
    memory: SharedMemory,
    device: str | None,
) -> None:
    """Receives batches from a pipe and sends back their results until the pipe closes.

    Args:
        pipe: Pipe to the main process.
        encoder: Codec and text encoder.
        offload: Tells which of the two to load.
        memory: Shared memory with the pixels of clips. The items of a batch of clips
            are offsets in it; those of a batch of captions are the captions.
        device: The only GPU that the process may see, as CUDA names it; None to leave
            the environment as it is.
    """
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    link = _Link(pipe)
    try:
        if offload.clips:
            encoder.load_codec()
        if offload.captions:
            encoder.load_text_encoder()
        link.send(Ready())
        _encode_batches(link, encoder, memory)
    except Exception as error:
        error.add_note(traceback.format_exc())
        link.send(error)


def _encode_batches(link: "_Link", encoder: BatchEncoder, memory: SharedMemory) -> None:
    last: float | None = None
    while True:
        begin = time.monotonic()
        batch = link.receive()
        if batch is None:
            return
        received = time.monotonic()
        results = encoder.encode(batch.key, _payloads(batch, memory))
        end = time.monotonic()
        # The wait for the first batch is the time that workers take to start.
        seconds, waited = (0.0, 0.0) if last is None else (end - last, received - begin)
        link.send(BatchEncoded(results, seconds, waited))
        last = end


def _payloads(batch: Batch[Any], memory: SharedMemory) -> list[Any]:
    if batch.key is None:
        return list(batch.items)
    return [memory.array(offset, (*batch.key.pixels, 3)) for offset in batch.items]


class _Link:
    """An encoder's end of its pipe, with a thread that receives batches.

    The main process sends the next batch while this process encodes. If nobody received
    it, both processes could block: one in sending a large batch, the other in sending
    large results. Results are sent before the next batch starts, not in a thread, so
    that a codec that kills the process takes no earlier result with it.
    """

    def __init__(self, pipe: connection.Connection):
        self._pipe = pipe
        self._inbox: queue.SimpleQueue[Batch[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def receive(self) -> Batch[Any] | None:
        """Waits for the next batch; None if the main process has closed the pipe."""
        return self._inbox.get()

    def send(self, message: Any) -> None:
        """Sends a message, which is lost if the main process has ended."""
        with contextlib.suppress(OSError):  # `receive` reports the end.
            self._pipe.send(message)

    def _receive(self) -> None:
        try:
            while True:
                self._inbox.put(self._pipe.recv())
        except (EOFError, OSError):
            self._inbox.put(None)
