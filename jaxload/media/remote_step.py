"""Encode step that sends clips and captions to an encoder process."""

import dataclasses
import math

import numpy as np

from jaxload.codecs.codec import BatchCodec
from jaxload.codecs.text_encoder import BatchTextEncoder
from jaxload.media.batch_encoder import BatchEncoder
from jaxload.media.encode_step import LocalStep, Ticket
from jaxload.media.link import CaptionReady, ClipReady, Link, ReleasesBuffer
from jaxload.media.shared_memory import SharedMemory
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offload:
    """Tells whether encoder processes encode clips and captions; else workers do."""

    clips: bool
    captions: bool

    @classmethod
    def of(cls, encoder: BatchEncoder) -> "Offload":
        """Offloads the codec if it encodes batches, and the text encoder likewise."""
        return cls(
            clips=isinstance(encoder.load_codec(), BatchCodec),
            captions=isinstance(encoder.load_text_encoder(), BatchTextEncoder),
        )

    def __bool__(self) -> bool:
        """Tells whether encoder processes are needed."""
        return self.clips or self.captions


class RemoteStep:
    """Encode step that offloads clips, captions or both to encoder processes.

    Pixels pass through shared memory, everything else through pipes.
    """

    def __init__(
        self,
        encoder: BatchEncoder,
        offload: Offload,
        link: Link,
        memory: SharedMemory,
    ):
        self.num_unwritten = 0
        self._encoder = encoder
        self._local = LocalStep(encoder)
        self._offload = offload
        self._link = link
        self._memory = memory
        self._has_buffer = False

    def open(self) -> None:
        """Loads the plugins that are not offloaded."""
        if not self._offload.clips:
            self._encoder.load_codec()
        if not self._offload.captions:
            self._encoder.load_text_encoder()

    def buffer(self, shape: Shape) -> np.ndarray:
        """Returns a buffer for a clip; blocks while the shared memory is full."""
        self._link.poll()
        if not self._offload.clips:
            return self._local.buffer(shape)
        size = (*shape.pixels, 3)
        offset = self._link.request_buffer(math.prod(size))
        self._has_buffer = True
        return self._memory.array(offset, size)

    def release(self) -> None:
        """Frees the last buffer if its clip was not submitted."""
        if self._has_buffer:
            self._link.send(ReleasesBuffer())
            self._has_buffer = False

    def submit_clip(self, name: str, shape: Shape, video: np.ndarray) -> Ticket:
        """Submits a clip for encoding and returns the ticket that will get its latent.

        If the codec encodes batches, an encoder process encodes `video`, which has to
        be the array that `buffer` returned last. Otherwise, this process encodes it.
        """
        if not self._offload.clips:
            return self._local.submit_clip(name, shape, video)
        assert self._has_buffer
        number, ticket = self._link.new_ticket()
        self._link.send(ClipReady(number, name, shape))
        self._has_buffer = False
        return ticket

    def submit_caption(self, name: str, caption: str) -> Ticket:
        """Submits a caption to the encoders, or encodes it here."""
        if not self._offload.captions:
            return self._local.submit_caption(name, caption)
        number, ticket = self._link.new_ticket()
        self._link.send(CaptionReady(number, name, caption))
        return ticket

    def wait(self) -> None:
        """Blocks until an encoder sends a result."""
        self._link.wait_for_result()
