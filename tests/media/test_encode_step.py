"""Tests of jaxload.media.encode_step: bounded memory of the local step."""

import functools
from typing import Any

import numpy as np

from jaxload.codecs.haar import HaarCodec
from jaxload.codecs.text_encoder import load_text_encoder
from jaxload.media.batch_encoder import BatchEncoder
from jaxload.media.encode_step import LocalStep
from jaxload.shapes.shape import Shape


class Large(HaarCodec):
    """The built-in codec in large batches, whose numbers of clips it records."""

    name = "large"

    def __init__(self):
        self.widths: list[int] = []

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns 32."""
        return 32

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Records the width of the clips, and encodes them."""
        self.widths.append(videos.shape[3])
        return np.stack([self.encode(video) for video in videos])


def encoder_of(codec: Any) -> BatchEncoder:
    load_text = functools.partial(load_text_encoder, "hashed-ngrams", 8)
    return BatchEncoder(lambda: codec, load_text)


def test_clips_that_wait_for_their_batches_are_bounded_in_bytes():
    """With twelve shapes and batches of 32, up to 372 clips could wait."""
    codec = Large()
    shapes = [Shape(1, 4, 4 + 2 * i) for i in range(12)]
    num_bytes = [int(np.prod(shape.pixels)) * 3 for shape in shapes]
    limit = 3 * sum(num_bytes)
    step = LocalStep(encoder_of(codec), limit)
    caption = step.submit_caption("a", "text")
    tickets = []
    for _ in range(5):
        for shape in shapes:
            video = step.buffer(shape)
            video[:] = len(tickets)
            tickets.append((step.submit_clip("a", shape, video), shape, len(tickets)))
            assert step.num_bytes <= limit
    # The oldest partial batches were encoded, each after three or four rounds.
    assert codec.widths[:3] == [8 * shape.width for shape in shapes[:3]]
    while step.num_bytes or caption.result is None:
        step.wait()
    for ticket, shape, value in tickets:
        expected = HaarCodec().encode(np.full((*shape.pixels, 3), value, np.uint8))
        assert isinstance(ticket.result, np.ndarray)
        np.testing.assert_array_equal(
            ticket.result, expected.astype(ticket.result.dtype)
        )


def test_a_clip_larger_than_the_bound_is_encoded():
    codec = Large()
    step = LocalStep(encoder_of(codec), 1)
    for _ in range(3):
        step.submit_clip("a", Shape(1, 4, 4), step.buffer(Shape(1, 4, 4)))
    assert len(codec.widths) == 2
