"""Codecs and text encoders that break a rule of docs/adding-a-codec.md."""

import functools
from collections.abc import Sequence

import numpy as np

from jaxload.codecs.haar import HaarCodec


class NoDecode(HaarCodec):
    """Has None for a required member."""

    decode = None  # pyright: ignore[reportAssignmentType]


class BatchWithoutSize(HaarCodec):
    """Has `encode_batch` and no `batch_size`."""

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Encodes each clip."""
        return np.stack([self.encode(video) for video in videos])


class SizeWithoutBatch(HaarCodec):
    """Has `batch_size` and None for `encode_batch`."""

    encode_batch = None

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns a fixed number of clips."""
        return 4


class NumberAsSize(BatchWithoutSize):
    """Has a number for `batch_size`, as a text encoder has."""

    batch_size = 4


class SizeRaises(BatchWithoutSize):
    """Raises an exception of several lines in `batch_size`."""

    name = "size raises"

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Raises."""
        raise RuntimeError("no table\nof sizes")


class FloatSize(BatchWithoutSize):
    """Returns a fraction as its batch size."""

    name = "float size"

    def batch_size(self, pixels: tuple[int, int, int]) -> float:
        """Returns the result of a division."""
        return 8 / 2


class NumpySize(BatchWithoutSize):
    """Returns an integer of NumPy as its batch size."""

    name = "NumPy size"

    def batch_size(self, pixels: tuple[int, int, int]) -> np.integer:
        """Returns a number that depends on the size."""
        return 10_000_000 // np.prod(pixels)


class NamelessName(HaarCodec):
    """Has a name that is no text."""

    name = 1  # pyright: ignore[reportAssignmentType]


class NoChannels(HaarCodec):
    """Has a number of channels that is impossible."""

    channels = 0


class ChannelsRaise(HaarCodec):
    """Raises an exception when a member is read."""

    @functools.cached_property
    def channels(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Raises."""
        raise OSError("weights\nare missing")


class Letters:
    """Text encoder with one number per letter."""

    name = "letters"
    dim = 1

    def encode(self, caption: str) -> np.ndarray:
        """Returns the code of each letter."""
        return np.array([[ord(letter)] for letter in caption], np.float32)


class MethodAsSize(Letters):
    """Has a method for `batch_size`, as a codec has."""

    def batch_size(self) -> int:
        """Returns a fixed number of captions."""
        return 4

    def encode_batch(self, captions: Sequence[str]) -> list[np.ndarray]:
        """Encodes each caption."""
        return [self.encode(caption) for caption in captions]


class FractionAsSize(Letters):
    """Has a fraction for `batch_size`."""

    batch_size = 2.5

    def encode_batch(self, captions: Sequence[str]) -> list[np.ndarray]:
        """Encodes each caption."""
        return [self.encode(caption) for caption in captions]


class TextWithoutSize(Letters):
    """Has `encode_batch` and no `batch_size`."""

    def encode_batch(self, captions: Sequence[str]) -> list[np.ndarray]:
        """Encodes each caption."""
        return [self.encode(caption) for caption in captions]


class TextWithoutBatch(Letters):
    """Has `batch_size` and None for `encode_batch`."""

    batch_size = 4
    encode_batch = None


class DecodeRaises(HaarCodec):
    """Raises an exception in `decode`."""

    name = "no decoder"

    def decode(self, latent: np.ndarray) -> np.ndarray:
        """Raises."""
        raise RuntimeError("no decoder\nhere")


class DecodesFloats(HaarCodec):
    """Returns pixels as floats."""

    name = "floats"

    def decode(self, latent: np.ndarray) -> np.ndarray:
        """Returns the clip in [0, 1]."""
        return super().decode(latent).astype(np.float32) / 255


class DecodesTooMuch(HaarCodec):
    """Returns the frames that fill the first block too."""

    name = "too much"

    def decode(self, latent: np.ndarray) -> np.ndarray:
        """Returns three copies of the first frame, and the clip."""
        video = super().decode(latent)
        return np.concatenate([video[:1].repeat(3, axis=0), video])
