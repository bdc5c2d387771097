"""Main function of an encoder process, which encodes batches while workers decode."""

import dataclasses
import os
import time
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any, NamedTuple

from jaxload.media.batch_encoder import BatchEncoder, Result
from jaxload.media.batch_queue import Batch
from jaxload.media.inbox import Inbox
from jaxload.media.remote_step import Offload
from jaxload.media.shared_memory import SharedMemory


class Payload(NamedTuple):
    """Item of a batch, as an encoder process receives it."""

    name: str
    """File of the clip, or of the caption."""

    content: Any
    """Caption, or offset of a clip in the shared memory."""


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
        memory: Shared memory with the pixels of clips. The payloads of a batch of
            clips are offsets in it; those of a batch of captions are the captions.
        device: The only GPU that the process may see, as CUDA names it; None to leave
            the environment as it is.
    """
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    # Receives the next batch while this one is encoded. Otherwise both processes could
    # block: one in sending a large batch, the other in sending large results.
    inbox = Inbox(pipe)
    if offload.clips:
        encoder.load_codec()
    if offload.captions:
        encoder.load_text_encoder()
    pipe.send(Ready())
    last: float | None = None
    while True:
        begin = time.monotonic()
        batch = inbox.get()
        received = time.monotonic()
        names = [item.name for item in batch.items]
        results = encoder.encode(batch.key, _payloads(batch, memory), names)
        end = time.monotonic()
        # The wait for the first batch is the time that workers take to start.
        seconds, waited = (0.0, 0.0) if last is None else (end - last, received - begin)
        # Sent before the next batch starts, and not by a thread, so that a codec that
        # kills the process takes no earlier result with it.
        pipe.send(BatchEncoded(results, seconds, waited))
        last = end


def _payloads(batch: Batch[Payload], memory: SharedMemory) -> list[Any]:
    contents = [item.content for item in batch.items]
    if batch.key is None:
        return contents
    return [memory.array(offset, (*batch.key.pixels, 3)) for offset in contents]
