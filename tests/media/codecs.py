"""Codecs and text encoders as a user would write them, some of them faulty."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxload.codecs.haar import HaarCodec
from tests.media.media_files import moving_pattern


class Inverted(HaarCodec):
    """The built-in codec with negated latents."""

    name = "inverted, version 1"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns the latent, negated."""
        return -super().encode(video)


class FailsOnWide(HaarCodec):
    """Raises an exception on wide clips."""

    name = "fails"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Raises an exception if a clip is wider than high."""
        if video.shape[2] > video.shape[1]:
            raise RuntimeError("too wide for me")
        return super().encode(video)


class DiesOnWide(HaarCodec):
    """Kills its process on wide clips."""

    name = "dies"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Kills its process if a clip is wider than high."""
        if video.shape[2] > video.shape[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(video)


class Lengths:
    """Text encoder with one number per caption: its length."""

    name = "lengths"
    dim = 1

    def encode(self, caption: str) -> np.ndarray:
        """Returns the number of characters."""
        return np.array([[len(caption)]], np.float32)


class TwoTokens(Lengths):
    """Text encoder that encodes two tokens, which are at most 32 characters."""

    max_tokens = 2


class NoTokens(Lengths):
    """Text encoder with an invalid limit."""

    max_tokens = 0


class FailsWhileFlagged(HaarCodec):
    """Raises an exception while the file in JAXLOAD_TEST_FLAG exists."""

    name = "fails while flagged"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Raises, or encodes."""
        if os.path.exists(os.environ["JAXLOAD_TEST_FLAG"]):
            raise MemoryError("the GPU is full")
        return super().encode(video)


class RecordsModules(HaarCodec):
    """Writes the names of the imported modules to a file per process."""

    name = "records modules"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Writes the names, and encodes."""
        path = Path(os.environ["JAXLOAD_TEST_MODULES"]) / str(os.getpid())
        path.write_text("\n".join(sys.modules))
        return super().encode(video)


class DiesAtStart(HaarCodec):
    """Kills its process when it is made, unless that is the process of the tests."""

    name = "dies at its start"

    def __init__(self):
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)


class NotFinite(HaarCodec):
    """Returns latents that are not finite."""

    name = "not finite"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns a latent with a NaN."""
        latent = super().encode(video)
        latent[0, 0, 0, 0] = np.nan
        return latent


class FewChannels(HaarCodec):
    """Returns fewer channels than `channels`."""

    name = "few channels"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns half of the channels."""
        return super().encode(video)[..., :8]


class WrongText(Lengths):
    """Text encoder whose result has a wrong shape."""

    def encode(self, caption: str) -> np.ndarray:
        """Returns a vector instead of one vector per token."""
        return np.zeros(3, np.float32)


class Nameless:
    """Lacks all members of a codec."""


class Demanding(HaarCodec):
    """Cannot be called without arguments."""

    def __init__(self, weights: str):
        self.weights = weights


# --- Codecs that encode batches ---


class Batched(HaarCodec):
    """The built-in codec, in batches."""

    name = "batched"

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns a size that depends on the shape and divides no number of clips."""
        return 5 if pixels[0] == 1 else 3

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Encodes each clip; asserts that the batch has the requested size."""
        assert len(videos) == self.batch_size(videos.shape[1:4])
        return np.stack([self.encode(video) for video in videos])


def _has_picture_3(videos: np.ndarray) -> bool:
    """Returns whether one of the clips is the fourth picture of tests/test_prepare."""
    picture = moving_pattern(8, 64, 64)[3]
    return any(np.array_equal(video[0], picture) for video in videos)


class BatchedFailsOnPicture(Batched):
    """Raises an exception on a batch that has a certain picture."""

    name = "batched, fails"

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Raises, or encodes."""
        if _has_picture_3(videos):
            raise RuntimeError("not this one")
        return super().encode_batch(videos)


class BatchedDiesOnPicture(Batched):
    """Kills its process on a batch that has a certain picture."""

    name = "batched, dies"

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Kills its process, or encodes."""
        if _has_picture_3(videos):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_batch(videos)


class BatchedDiesAtStart(Batched, DiesAtStart):
    """Kills its process before it has encoded anything."""


class BatchedNotFinite(Batched):
    """Returns one invalid latent in a batch that has a certain picture."""

    name = "batched, not finite"

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Makes the latent of that picture invalid."""
        latents = super().encode_batch(videos)
        for video, latent in zip(videos, latents, strict=True):
            if _has_picture_3(video[None]):
                latent[0, 0, 0, 0] = np.nan
        return latents


class NoBatch(Batched):
    """Returns a batch size of 0."""

    name = "no batch"

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns an invalid size."""
        return 0


class BatchedOutOfMemory(Batched):
    """Raises what PyTorch does on a GPU that is full."""

    name = "too large"

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Raises always."""
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


class LargeBatches(Batched):
    """Asks for more clips per batch than there are."""

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns a large size."""
        return 100


class SlowBatches(Batched):
    """Encodes slowly, so that a test can kill its process meanwhile."""

    name = "batched"

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Records its process id, and waits before it encodes."""
        if path := os.environ.get("JAXLOAD_TEST_PIDS"):
            (Path(path) / str(os.getpid())).touch()
        time.sleep(0.1)
        return super().encode_batch(videos)


class BatchedLengths(Lengths):
    """Text encoder with one number per caption, in batches of four."""

    batch_size = 4

    def encode_batch(self, captions: Sequence[str]) -> list[np.ndarray]:
        """Returns the number of characters of each caption."""
        assert len(captions) == self.batch_size
        return [self.encode(caption) for caption in captions]


class Fine:
    """Mean colours of blocks of 2 frames x 4 x 4 pixels, repeated in 16 channels."""

    name = "fine"
    channels = 16
    strides = (2, 4, 4)

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns the latent; the first frame is repeated to fill a block."""
        frames, height, width, _ = video.shape
        x = np.concatenate([video[:1], video]).astype(np.float32) / 127.5 - 1.0
        x = x.reshape((frames + 1) // 2, 2, height // 4, 4, width // 4, 4, 3)
        return np.resize(x.mean(axis=(1, 3, 5)).T, (16, *x.shape[4:1:-2], len(x))).T

    def decode(self, latent: np.ndarray) -> np.ndarray:
        """Returns the clip of a latent."""
        video = latent[..., :3].repeat(2, axis=0)[1:].repeat(4, axis=1)
        video = video.repeat(4, axis=2).clip(-1.0, 1.0)
        return np.rint((video + 1.0) * 127.5).astype(np.uint8)
