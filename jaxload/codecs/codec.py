"""Protocols of codecs, which convert pixels to latents and back."""

import functools
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8

from jaxload.codecs.haar import HaarCodec
from jaxload.codecs.plugin import make_plugin, whole

# Shape suffixes: P pixel frames, Y X pixel rows and columns, F H W the latent's.


@runtime_checkable
class Codec(Protocol):
    """Converts pixels to latents and back.

    The first latent frame covers one frame of the clip, and each later one covers
    `strides[0]` frames. With a stride of 4, a clip has 4k+1 frames.

    A codec may have an attribute `is_causal`. If it is True, no latent frame depends on
    later frames of the clip, so that the first latent frames of a clip are the latent
    of its beginning. Clips that are too long for the memory then run by their first
    latent frames; otherwise they are left out.
    """

    name: str
    """Name and version of the codec, recorded in the dataset's fingerprint."""

    channels: int

    strides: tuple[int, int, int]
    """Frames, rows and columns of pixels per latent position.

    The first latent frame is an exception: it covers one frame of pixels.
    """

    def encode(self, video: UInt8[np.ndarray, "p y x 3"]) -> np.ndarray:
        """Returns the latent `[F, H, W, C]` of a clip, in float32."""
        ...

    def decode(self, latent: Float[np.ndarray, "f h w c"]) -> np.ndarray:
        """Returns the clip `[P, Y, X, 3]` of a latent, in uint8."""
        ...


@runtime_checkable
class BatchCodec(Codec, Protocol):
    """Codec that encodes several clips of one shape in one call, for example on a GPU.

    `jaxload.prepare` runs such a codec in encoder processes, separate from decoding.
    """

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns the batch size for clips of frames x height x width in pixels.

        Larger batches use a GPU better and take more of its memory. `encode_batch`
        always gets exactly this number of clips, so that a compiled codec needs only
        one program per size and length.
        """
        ...

    def encode_batch(self, videos: UInt8[np.ndarray, "b p y x 3"]) -> np.ndarray:
        """Returns the latents `[B, F, H, W, C]` of clips, in float32.

        A clip's latent must not depend on the other clips of the batch. If it depends
        on its place in the batch by rounding, preparing twice may give other last bits.
        """
        ...


_BUILT_IN = {HaarCodec.name: HaarCodec}


def is_causal(codec: Codec) -> bool:
    """Returns whether the first latent frames of a clip depend on no later frame."""
    return bool(getattr(codec, "is_causal", False))


@functools.cache
def load_codec(name: str) -> Codec:
    """Returns a codec by name: built in, or module:attribute. Made once per process."""
    codec = make_plugin("codec", name, _BUILT_IN, Codec, BatchCodec)
    whole(f"codec {name!r}: channels", codec.channels)
    return codec
