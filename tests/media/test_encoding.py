"""Tests of jaxload.media.encoding: choice and size of the frames."""

from pathlib import Path

import numpy as np
import pytest

from jaxload.codecs.codec import HaarCodec
from jaxload.codecs.text import HashedNgramEncoder
from jaxload.media.cutting import cut_file
from jaxload.media.encoding import encode_file
from jaxload.media.frames import MediaError, scan
from jaxload.shapes.clips import ShapeRules
from jaxload.shapes.shape import Shape
from tests.media.media_files import plain_frames, write_video

RULES = ShapeRules(max_frames=9, min_rest_frames=5)
SHAPES = (Shape(1, 4, 4), Shape(2, 4, 6), Shape(3, 4, 6))
TEXT = HashedNgramEncoder(8)


class Recording(HaarCodec):
    """Codec that records the videos it encodes."""

    def __init__(self):
        self.videos: list[np.ndarray] = []

    def encode(self, video: np.ndarray) -> np.ndarray:
        self.videos.append(video)
        return super().encode(video)


def numbered(count: int) -> np.ndarray:
    """Returns frames of distinct brightness."""
    return plain_frames([(g, g, g) for g in range(20, 20 + 4 * count, 4)], 32, 48)


def numbers(video: np.ndarray) -> list[int]:
    """Returns the indices in `numbered` of these frames."""
    return np.rint((video.mean(axis=(1, 2, 3)) - 20) / 4).astype(int).tolist()


def encode(path: Path, codec: HaarCodec) -> list[str]:
    cutting = cut_file(path.name, scan(path), SHAPES, RULES)
    encoded = encode_file(
        path, path.name, "a caption", cutting, codec=codec, text_encoder=TEXT
    )
    return [entry.id for entry, _ in encoded]


def test_clips_have_the_frames_of_their_time(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4", numbered(50), fps=32)
    codec = Recording()
    assert encode(path, codec) == ["a.mp4@0", "a.mp4@9", "a.mp4@18"]
    # Every other frame of 32 fps; the rest of 7 is cut to 5.
    assert [numbers(video) for video in codec.videos] == [
        list(range(0, 18, 2)),
        list(range(18, 36, 2)),
        list(range(36, 46, 2)),
    ]
    assert [video.shape for video in codec.videos] == [
        (9, 32, 48, 3),
        (9, 32, 48, 3),
        (5, 32, 48, 3),
    ]


def test_a_varying_rate_is_resampled_by_time(tmp_path: Path):
    times = [0.0, 0.05, 0.1, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55]
    path = write_video(tmp_path / "a.mkv", numbered(9), times=times)
    codec = Recording()
    encode(path, codec)
    # 8 steps in 0.55 s are 14.5 a second: the nearest frame to each of 9 ticks.
    expected = [int(np.abs(np.array(times) - k * 0.55 / 8).argmin()) for k in range(9)]
    assert numbers(codec.videos[0]) == expected
    assert len(set(expected)) < 9  # The gap shows a frame twice.


def test_frames_of_clips_that_were_left_out_are_passed_over(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4", numbered(20), fps=16)
    codec = Recording()
    found = scan(path)
    cutting = cut_file("a.mp4", found, (Shape(2, 4, 6),), RULES)
    assert [clip.first for clip in cutting.clips] == [0, 9]
    list(encode_file(path, "a", "", cutting, codec=codec, text_encoder=TEXT))
    assert [numbers(video) for video in codec.videos] == [
        [0, 1, 2, 3, 4],
        [9, 10, 11, 12, 13],
    ]


def test_a_file_that_became_shorter_is_named(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4", numbered(18), fps=16)
    cutting = cut_file("a.mp4", scan(path), SHAPES, RULES)
    write_video(path, numbered(7), fps=16)
    encoded = encode_file(
        path, "a.mp4", "", cutting, codec=HaarCodec(), text_encoder=TEXT
    )
    with pytest.raises(MediaError, match="changed while it was prepared"):
        list(encoded)


def test_a_codec_of_other_strides_is_refused(tmp_path: Path):
    class Wrong(HaarCodec):
        name = "wrong"

        def encode(self, video: np.ndarray) -> np.ndarray:
            return super().encode(video)[:, :2]

    path = write_video(tmp_path / "a.mp4", numbered(9), fps=16)
    message = r"codec wrong made \(3, 2, 6, 16\), expected \(3, 4, 6, 16\)"
    with pytest.raises(ValueError, match=message):
        encode(path, Wrong())
