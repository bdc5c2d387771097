"""Tests of jaxload.media.synthetic."""

import collections
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxload.errors import InputError
from jaxload.media.config import SyntheticConfig
from jaxload.media.folder import list_media
from jaxload.media.frames import read_frames
from jaxload.media.synthetic import Scene, draw_media, random_scene
from jaxload.shapes.geometry import DEFAULT

CONFIG = SyntheticConfig(num_samples=40, clips=("1x32x32", "9x32x48"))
SCENE = Scene(
    form="circle",
    colour="red",
    background="black",
    size="small",
    direction="right",
    drift=0.5,
)


def test_the_caption_says_what_is_drawn():
    assert SCENE.caption() == "a small red circle moving right on a black background"


def centre_of(frame: np.ndarray) -> np.ndarray:
    weight = frame[..., 0].astype(float) - frame[..., 0].min()
    grid = np.stack(np.meshgrid(*map(np.arange, weight.shape), indexing="ij"))
    return (grid * weight).sum(axis=(1, 2)) / weight.sum()


@pytest.mark.parametrize(
    ("direction", "axis", "sign"),
    [("right", 1, 1), ("left", 1, -1), ("down", 0, 1), ("up", 0, -1)],
)
def test_the_form_moves_as_the_caption_says(direction, axis, sign):
    video = dataclasses.replace(SCENE, direction=direction).draw(17, 64, 64)
    travel = centre_of(video[-1]) - centre_of(video[0])
    assert sign * travel[axis] > 20
    assert abs(travel[1 - axis]) < 1


def test_colours_are_those_of_the_caption():
    frame = SCENE.draw(1 + 4, 64, 64)[2]
    np.testing.assert_array_equal(frame[32, 32], (230, 50, 50))
    np.testing.assert_array_equal(frame[0, 0], (15, 15, 20))


def drawn(config: SyntheticConfig, directory: Path) -> dict[str, bytes]:
    draw_media(config, directory, fps=16.0, on_file=lambda: None)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_same_seed_draws_the_same_bytes(tmp_path: Path):
    first = drawn(CONFIG, tmp_path / "a")
    assert drawn(CONFIG, tmp_path / "b") == first
    other = dataclasses.replace(CONFIG, seed=1)
    assert drawn(other, tmp_path / "c") != first
    assert other.origin() != CONFIG.origin()


def test_media_look_like_what_is_drawn(tmp_path: Path):
    drawn(CONFIG, tmp_path / "media")
    captions = {
        file.name: file.caption for file in list_media(tmp_path / "media").files
    }
    assert len(captions) == CONFIG.num_samples
    assert all(caption and "background" in caption for caption in captions.values())
    clip = next(name for name in captions if name.endswith(".mp4"))
    found = [frame.rgb() for frame in read_frames(tmp_path / "media" / clip)]
    number = int(clip.removesuffix(".mp4"))
    scene = random_scene(np.random.default_rng([CONFIG.seed, number]), moving=True)
    assert captions[clip] == scene.caption()
    expected = scene.draw(9, 32, 48)
    assert len(found) == len(expected)
    # Compressed, with half the colour resolution: close, not equal.
    assert np.abs(np.array(found) - expected.astype(float)).mean() < 6


def test_sizes_listed_first_come_most_often(tmp_path: Path):
    config = dataclasses.replace(CONFIG, num_samples=200)
    counts = collections.Counter(
        Path(name).suffix for name in drawn(config, tmp_path / "m")
    )
    assert counts[".png"] > counts[".mp4"] > 0


def test_a_process_that_was_faster_is_no_error(tmp_path: Path):
    first = drawn(CONFIG, tmp_path / "media")
    assert drawn(CONFIG, tmp_path / "media") == first
    assert [path.name for path in tmp_path.iterdir()] == ["media"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .*choose another data"):
        drawn(CONFIG, tmp_path / "file" / "media")


@pytest.mark.parametrize("clip", ["4x32x32", "5x20x32", "5x0x16"])
def test_rejects_sizes_that_the_model_cannot_take(clip):
    config = SyntheticConfig(num_samples=1, clips=(clip,))
    with pytest.raises(InputError, match=rf"synthetic\.clips: clip of {clip}: "):
        config.shapes(DEFAULT)


@pytest.mark.parametrize("clip", ["5x32", "x"])
def test_rejects_text_that_is_no_size(clip):
    with pytest.raises(InputError, match=rf"synthetic\.clips: .*'{clip}': expected"):
        SyntheticConfig(num_samples=1, clips=(clip,))
