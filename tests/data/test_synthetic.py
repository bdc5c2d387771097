"""Tests of jaxload.data.synthetic and jaxload.data.dataset."""

import collections
import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

from jaxload.config import Config
from jaxload.data.dataset import open_dataset
from jaxload.data.manifest import Manifest
from jaxload.data.synthetic import Scene, SyntheticConfig, synthetic_samples
from jaxload.errors import InputError

CONFIG = SyntheticConfig(num_samples=40, clips=("1x32x32", "9x32x48"), text_dim=16)
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


def test_the_same_seed_draws_the_same_bytes():
    assert list(synthetic_samples(CONFIG)) == list(synthetic_samples(CONFIG))
    other = dataclasses.replace(CONFIG, seed=1)
    assert list(synthetic_samples(CONFIG)) != list(synthetic_samples(other))


def test_sizes_listed_first_come_most_often():
    config = dataclasses.replace(CONFIG, num_samples=200)
    counts = collections.Counter(e.shape.frames for e, _ in synthetic_samples(config))
    assert counts[1] > counts[3] > 0


@pytest.mark.parametrize("clip", ["4x32x32", "5x20x32", "5x32", "x", "5x0x16"])
def test_rejects_sizes_that_the_model_cannot_take(clip):
    with pytest.raises(InputError, match=r"4k\+1 frames and sizes in multiples of 16"):
        dataclasses.replace(CONFIG, clips=(clip,))


def test_a_data_set_is_drawn_once(debug_config: Config, debug_manifest: Manifest):
    out = io.StringIO()
    path = debug_manifest.directory / "manifest.parquet"
    before = path.stat().st_mtime_ns
    open_dataset(debug_config.data, debug_config.synthetic, Console(file=out))
    assert path.stat().st_mtime_ns == before
    assert out.getvalue() == ""


def test_a_data_set_made_otherwise_is_refused(
    debug_config: Config, debug_manifest: Manifest
):
    assert debug_config.synthetic is not None
    other = dataclasses.replace(debug_config.synthetic, seed=7)
    with pytest.raises(InputError, match=r"was made with seed=0, this config wants 7"):
        open_dataset(debug_config.data, other, Console(quiet=True))
