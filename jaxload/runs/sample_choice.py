"""Chooses the caption and the shape of a run's sample where the config has none."""

import dataclasses
import math

from jaxload.config import Config
from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.manifest_metadata import FILE_NAME
from jaxload.runs.dataset import geometry_of, random_shapes
from jaxload.sampling.config import SampleConfig
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape


def settle_sample(config: Config) -> Config:
    """Returns the config with a caption and a shape of the sample to draw.

    They are taken from the dataset. If it does not exist, the caption stays empty, and
    the shape is the first of `data.random_shapes`, else the largest that the section
    `shapes` allows.
    """
    sample = config.sample
    if sample.caption and sample.shape:
        return config
    geometry = geometry_of(config)
    if (config.data.directory / FILE_NAME).exists():
        found = _of_dataset(read_manifest(config.data.directory, geometry))
    else:
        shapes = random_shapes(config) or (_largest(config, geometry),)
        found = SampleConfig(caption="", shape=str(shapes[0]))
    settled = dataclasses.replace(
        sample,
        caption=sample.caption or found.caption,
        shape=sample.shape or found.shape,
    )
    return dataclasses.replace(config, sample=settled)


def keep_sample(config: Config, begun: Config) -> Config:
    """Fills in the sample that a run settled on when it began.

    The dataset may have grown since, and its newest rows would give another sample.
    """
    sample = dataclasses.replace(
        config.sample,
        caption=config.sample.caption or begun.sample.caption,
        shape=config.sample.shape or begun.sample.shape,
    )
    return dataclasses.replace(config, sample=sample)


def _of_dataset(manifest: Manifest) -> SampleConfig:
    """Returns the most frequent shape, of several frames if any, and its first caption.

    A shape without captions gives an empty one.
    """
    rows_by_shape = manifest.rows_by_shape
    shape = max(rows_by_shape, key=lambda s: (s.frames > 1, len(rows_by_shape[s])))
    captions = manifest.read_column("caption")
    rows = rows_by_shape[shape].tolist()
    caption = next(filter(None, (captions[row].as_py() for row in rows)), "")
    return SampleConfig(caption=caption, shape=str(shape))


def _largest(config: Config, geometry: Geometry) -> Shape:
    """Returns the longest shape, about square, that the section `shapes` allows."""
    side = math.isqrt(config.shapes.max_pixels)
    height, width = (step * max(1, side // step) for step in geometry.token_pixels)
    return Shape.of_pixels((config.shapes.max_frames, height, width), geometry)
