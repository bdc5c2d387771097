"""Encodes batches of clips and captions, and checks the arrays that plugins return."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxload.codecs.batch import CaptionBatches, ClipBatches
from jaxload.codecs.codec import Codec
from jaxload.codecs.text_encoder import TextEncoder
from jaxload.data.record import BFLOAT16
from jaxload.shapes.shape import Shape

Key: TypeAlias = Shape | None
"""Key that all items of a batch share: the shape of clips, or None for captions."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Reason why a clip or a caption could not be encoded."""

    detail: str
    deadly: bool = False
    """True if encoders died on the item: this run must not try its file again."""


Result: TypeAlias = np.ndarray | Failure
"""A latent or an embedding in bfloat16, or the reason why there is none."""


@dataclasses.dataclass(frozen=True)
class BatchEncoder:
    """Runs a codec and a text encoder on batches of one key.

    Each is loaded at its first use, because a process may need only one of them.
    """

    load_codec: Callable[[], Codec]
    load_text_encoder: Callable[[], TextEncoder]

    def size(self, key: Key) -> int:
        """Returns the number of items in a full batch."""
        if key is None:
            return CaptionBatches(self.load_text_encoder()).size()
        return ClipBatches(self.load_codec()).size(key.pixels)

    def encode(self, key: Key, items: Sequence[Any]) -> list[Result]:
        """Encodes videos `[P, Y, X, 3]` of one shape, or captions if `key` is None.

        If a batch fails, its items are encoded one by one, so that only the items at
        fault have no result.
        """
        run = self._encode_captions if key is None else self._encode_clips(key)
        try:
            return list(run(items))
        except Exception as error:  # Codecs and text encoders may raise anything.
            if len(items) == 1:
                return [Failure(f"{type(error).__name__}: {error}")]
        return [self.encode(key, [item])[0] for item in items]

    def _encode_clips(self, shape: Shape) -> Callable[[Sequence[Any]], list[Result]]:
        codec = self.load_codec()
        who = f"codec {codec.name}"
        expected = (shape.frames, shape.height, shape.width, codec.channels)

        def run(videos: Sequence[np.ndarray]) -> list[Result]:
            latents = ClipBatches(codec).encode(videos)
            _check_count(who, len(latents), len(videos))
            return [_checked(who, latent, expected) for latent in latents]

        return run

    def _encode_captions(self, captions: Sequence[str]) -> list[Result]:
        encoder = self.load_text_encoder()
        who = f"text encoder {encoder.name}"
        texts = CaptionBatches(encoder).encode(captions)
        _check_count(who, len(texts), len(captions))
        return [_checked(who, text, (len(text), encoder.dim)) for text in texts]


def _check_count(who: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{who} returned {found} results, expected {expected}")


def _checked(who: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Converts an array to bfloat16; raises for a wrong shape or non-finite values."""
    if array.shape != shape:
        raise ValueError(f"{who} returned {array.shape}, expected {shape}")
    array = array.astype(BFLOAT16)
    if not np.isfinite(array.astype(np.float32)).all():
        raise ValueError(f"{who} returned numbers that are not finite in bfloat16")
    return array
