"""Codecs and a text encoder as others would write them, some of them bad."""

import multiprocessing
import os
import signal

import numpy as np

from jaxload.codecs.codec import HaarCodec


class Inverted(HaarCodec):
    """The built-in codec, upside down."""

    name = "inverted, version 1"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns the latent, negated."""
        return -super().encode(video)


class FailsOnWide(HaarCodec):
    """Raises on some clips."""

    name = "fails"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Raises if a clip is wider than high."""
        if video.shape[2] > video.shape[1]:
            raise RuntimeError("too wide for me")
        return super().encode(video)


class DiesOnWide(HaarCodec):
    """Takes its process down on some clips."""

    name = "dies"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Kills its process if a clip is wider than high."""
        if video.shape[2] > video.shape[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(video)


class Lengths:
    """One number a caption: how long it is."""

    name = "lengths"
    dim = 1

    def encode(self, caption: str) -> np.ndarray:
        """Returns the number of characters."""
        return np.array([[len(caption)]], np.float32)


class FailsWhileFlagged(HaarCodec):
    """Raises as long as a file exists that the environment names."""

    name = "fails while flagged"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Raises, or encodes."""
        if os.path.exists(os.environ["JAXLOAD_TEST_FLAG"]):
            raise MemoryError("the GPU is full")
        return super().encode(video)


class DiesAtStart(HaarCodec):
    """Takes its process down before it has done anything, unless that is the tests'."""

    name = "dies at its start"

    def __init__(self):
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)


class NotFinite(HaarCodec):
    """Divides by zero somewhere."""

    name = "not finite"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns a latent with a hole in it."""
        latent = super().encode(video)
        latent[0, 0, 0, 0] = np.nan
        return latent


class FewChannels(HaarCodec):
    """Makes fewer channels than it says."""

    name = "few channels"

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns half of the channels."""
        return super().encode(video)[..., :8]


class WrongText(Lengths):
    """Gives embeddings of another width than it says."""

    def encode(self, caption: str) -> np.ndarray:
        """Returns a vector, which is no sequence of them."""
        return np.zeros(3, np.float32)


class Nameless:
    """Lacks everything."""


class Demanding(HaarCodec):
    """Cannot be called without arguments."""

    def __init__(self, weights: str):
        self.weights = weights
