"""Tests of jaxload.media.batch_encoder: results, failures and when to stop."""

import functools
from typing import Any

import numpy as np
import pytest

from jaxload.codecs.haar import HaarCodec
from jaxload.codecs.text_encoder import load_text_encoder
from jaxload.errors import InputError
from jaxload.media.batch_encoder import BatchEncoder, Failure, Key, Result
from jaxload.shapes.shape import Shape

SHAPE = Shape(1, 4, 4)
SIZE = 8
BAD = 255


class Counting(HaarCodec):
    """Encodes batches of eight, and counts them; a clip is bad if it is white."""

    name = "counting"

    def __init__(self):
        self.num_calls = 0

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns eight."""
        return SIZE

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Counts the batch, and encodes it."""
        self.num_calls += 1
        return self.result(videos, np.stack([self.encode(video) for video in videos]))

    def result(self, videos: np.ndarray, latents: np.ndarray) -> np.ndarray:
        """Returns the latents."""
        return latents


class NotFinite(Counting):
    """Makes the latents of bad clips invalid."""

    def result(self, videos: np.ndarray, latents: np.ndarray) -> np.ndarray:
        """Writes a NaN into each bad row."""
        latents[videos[:, 0, 0, 0, 0] == BAD, 0, 0, 0, 0] = np.nan
        return latents


class Raising(Counting):
    """Raises on bad clips."""

    error: Exception = RuntimeError("bad clip")

    def result(self, videos: np.ndarray, latents: np.ndarray) -> np.ndarray:
        """Raises if a clip is bad."""
        if (videos == BAD).all(axis=(1, 2, 3, 4)).any():
            raise self.error
        return latents


class OutOfMemory(Raising):
    """Raises what XLA does on a GPU that is full."""

    error = RuntimeError(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nmore"
    )


def encode(
    codec: Any, *values: int, encoder: BatchEncoder, name: str = ""
) -> list[Result]:
    """Encodes clips of one file, or each of a file of its own."""
    names = [name or f"{i}.png" for i in range(len(values))]
    videos = [np.full((*SHAPE.pixels, 3), value, np.uint8) for value in values]
    return encoder.encode(SHAPE, videos, names)


def encoder_of(codec: Any) -> BatchEncoder:
    load_text = functools.partial(load_text_encoder, "hashed-ngrams", 8)
    return BatchEncoder(lambda: codec, load_text)


@pytest.mark.parametrize(
    ("codec", "num_calls", "detail"),
    [
        (NotFinite(), 1, "codec counting returned numbers that are not finite"),
        (Raising(), 1 + SIZE, "RuntimeError: bad clip"),  # Which clip is not known.
    ],
)
def test_one_bad_clip_fails_alone(codec: Counting, num_calls: int, detail: str):
    encoder = encoder_of(codec)
    results = encode(codec, 1, 2, 3, BAD, 5, 6, 7, 8, encoder=encoder)
    failed = [isinstance(result, Failure) for result in results]
    assert failed == [False] * 3 + [True] + [False] * 4
    assert isinstance(results[3], Failure)
    assert results[3].detail.startswith(detail)
    assert codec.num_calls == num_calls
    assert isinstance(results[7], np.ndarray)
    expected = HaarCodec().encode(np.full((*SHAPE.pixels, 3), 8, np.uint8))
    np.testing.assert_array_equal(results[7], expected.astype(results[7].dtype))


@pytest.mark.parametrize("num_clips", [SIZE, 1])
def test_a_batch_that_takes_too_much_memory_stops_at_once(num_clips: int):
    """Even a single clip is encoded in a batch of full size."""
    codec = OutOfMemory()
    message = (
        r"codec counting ran out of memory on a batch of 8 clips of 1x32x32 "
        r"\(RuntimeError: RESOURCE_EXHAUSTED: Out of .* 9 bytes\. more\); lower its "
    )
    with pytest.raises(InputError, match=message) as error:
        encode(codec, *[BAD] * num_clips, encoder=encoder_of(codec))
    assert "\n" not in str(error.value)
    assert codec.num_calls == 1


def test_whole_batches_that_fail_in_a_row_stop_it():
    codec = Raising()
    encoder = encoder_of(codec)
    for _ in range(2):  # A batch that succeeds in part begins the count again.
        for _ in range(2):
            assert len(encode(codec, *[BAD] * SIZE, encoder=encoder)) == SIZE
        assert len(encode(codec, 1, BAD, encoder=encoder)) == 2
    for _ in range(2):
        encode(codec, BAD, BAD, encoder=encoder)
        encode(codec, BAD, encoder=encoder)  # Says nothing about whole batches.
    message = (
        r"codec counting failed on 3 whole batches in a row, last on 8 clips of "
        r"1x32x32: RuntimeError: bad clip; correct it"
    )
    with pytest.raises(InputError, match=message):
        encode(codec, *[BAD] * SIZE, encoder=encoder)


def test_one_file_of_many_batches_that_fail_stops_nothing():
    codec = Raising()
    encoder = encoder_of(codec)
    for _ in range(5):
        assert len(encode(codec, *[BAD] * SIZE, encoder=encoder, name="a.mp4")) == SIZE
    encode(codec, *[BAD] * SIZE, encoder=encoder, name="b.mp4")
    with pytest.raises(InputError, match=r"failed on 7 whole batches in a row"):
        encode(codec, *[BAD] * SIZE, encoder=encoder, name="c.mp4")


def test_captions_are_a_key_of_their_own():
    key: Key = None
    (result,) = encoder_of(HaarCodec()).encode(key, ["two words"], ["a.png"])
    assert isinstance(result, np.ndarray)
    assert result.shape == (2, 8)
