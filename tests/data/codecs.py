"""Codecs and a text encoder as others would write them, some of them bad."""

import os
import signal

import numpy as np

from jaxload.data.codec import HaarCodec


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
