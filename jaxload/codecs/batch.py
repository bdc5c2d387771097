"""Adapters that encode batches with any codec or text encoder."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8

from jaxload.codecs.codec import BatchCodec, Codec
from jaxload.codecs.plugin import described, whole
from jaxload.codecs.text_encoder import BatchTextEncoder, TextEncoder
from jaxload.errors import InputError

_Item = TypeVar("_Item")


@dataclasses.dataclass(frozen=True)
class ClipBatches:
    """Encodes batches of clips with any codec; one by one if it is no `BatchCodec`.

    A partial batch is padded with copies of its last clip, so that the codec always
    gets the batch size that it asked for. A compiled codec then needs only one program
    per size; a second program might round differently.
    """

    codec: Codec

    def size(self, pixels: tuple[int, int, int]) -> int:
        """Returns the batch size for clips of frames x height x width in pixels."""
        if not isinstance(self.codec, BatchCodec):
            return 1
        what = f"codec {self.codec.name}: batch_size({pixels})"
        try:
            size = self.codec.batch_size(pixels)
        except Exception as error:  # A codec may raise anything.
            raise InputError(
                f"{what} raised {described(error)}; correct the codec"
            ) from error
        return whole(what, size)

    def encode(self, videos: Sequence[UInt8[np.ndarray, "p y x 3"]]) -> np.ndarray:
        """Returns the latents `[B, F, H, W, C]` of clips, at most a full batch."""
        if not isinstance(self.codec, BatchCodec):
            return np.stack([np.asarray(self.codec.encode(video)) for video in videos])
        frames, height, width, _ = videos[0].shape
        size = self.size((frames, height, width))
        latents = self.codec.encode_batch(np.stack(_filled(videos, size)))
        return np.asarray(latents)[: len(videos)]


@dataclasses.dataclass(frozen=True)
class CaptionBatches:
    """Encodes batches of captions with any text encoder; see `ClipBatches`."""

    encoder: TextEncoder

    def size(self) -> int:
        """Returns the batch size for captions."""
        if not isinstance(self.encoder, BatchTextEncoder):
            return 1
        return int(self.encoder.batch_size)  # `load_text_encoder` has checked it.

    def encode(self, captions: Sequence[str]) -> list[np.ndarray]:
        """Returns the embeddings `[T, dim]` of captions, at most a full batch."""
        if not isinstance(self.encoder, BatchTextEncoder):
            return [np.asarray(self.encoder.encode(caption)) for caption in captions]
        filled = self.encoder.encode_batch(_filled(captions, self.size()))
        return [np.asarray(embedding) for embedding in filled][: len(captions)]


def _filled(items: Sequence[_Item], size: int) -> list[_Item]:
    return [*items, *[items[-1]] * (size - len(items))]
