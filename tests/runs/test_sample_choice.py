"""Tests of jaxload.runs.sample_choice."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from jaxload.config import Config
from jaxload.data.manifest import Entry
from jaxload.runs.sample_choice import keep_sample, settle_sample
from jaxload.sampling.config import SampleConfig
from jaxload.shapes.shape import Shape
from tests.data.datasets import write_dataset

ENTRIES = [
    *(("an image", Shape(1, 4, 4)) for _ in range(5)),
    ("a rare clip", Shape(3, 4, 4)),
    ("", Shape(2, 4, 4)),
    ("a [red] clip; $(rm)", Shape(2, 4, 4)),
]


@pytest.fixture
def config(debug_config: Config, tmp_path: Path) -> Config:
    """Returns a config of a directory without a dataset, and of no drawn media."""
    data = dataclasses.replace(debug_config.data, path=str(tmp_path / "set"))
    return dataclasses.replace(debug_config, data=data, synthetic=None)


def with_sample(config: Config, **fields: Any) -> Config:
    return dataclasses.replace(config, sample=SampleConfig(**fields))


def write_entries(config: Config) -> None:
    entries = [
        Entry(id=str(i), source="a", caption=caption, text_tokens=1, shape=shape)
        for i, (caption, shape) in enumerate(ENTRIES)
    ]
    write_dataset(config.data.directory, [(entry, b"-") for entry in entries])


def test_the_most_frequent_clip_and_its_first_caption(config: Config):
    write_entries(config)
    sample = settle_sample(with_sample(config)).sample
    assert (sample.caption, sample.shape) == ("a [red] clip; $(rm)", "2x4x4")


def test_given_values_are_kept(config: Config):
    write_entries(config)
    sample = settle_sample(with_sample(config, caption="mine")).sample
    assert (sample.caption, sample.shape) == ("mine", "2x4x4")
    sample = settle_sample(with_sample(config, shape="1x2x2")).sample
    assert (sample.caption, sample.shape) == ("a [red] clip; $(rm)", "1x2x2")
    both = with_sample(config, caption="mine", shape="1x2x2")
    assert settle_sample(both) is both


def test_a_resumed_run_keeps_its_sample_although_the_dataset_has_grown(config: Config):
    begun = with_sample(config, caption="then", shape="1x4x4")
    write_entries(config)
    kept = settle_sample(keep_sample(with_sample(config), begun)).sample
    assert kept == begun.sample
    changed = keep_sample(with_sample(config, caption="mine"), begun).sample
    assert (changed.caption, changed.shape) == ("mine", "1x4x4")


def test_without_a_dataset_the_shape_is_the_largest_allowed(config: Config):
    rules = dataclasses.replace(config.shapes, max_frames=9, max_pixels=64 * 64)
    config = dataclasses.replace(config, shapes=rules)
    sample = settle_sample(with_sample(config)).sample
    assert (sample.caption, sample.shape) == ("", "3x8x8")


def test_random_samples_have_a_shape_of_theirs(config: Config):
    data = dataclasses.replace(config.data, random_shapes=("2x4x6", "1x4x4"))
    config = dataclasses.replace(config, data=data)
    assert settle_sample(with_sample(config)).sample.shape == "2x4x6"
