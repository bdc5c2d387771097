"""Tests of jaxload.data.batch_spec."""

from pathlib import Path

import numpy as np
import pytest

from jaxload.balance.form import Grid
from jaxload.balance.program import Layout, Program
from jaxload.balance.schedule import Lockstep
from jaxload.data.batch_spec import ArraySpec, batch_bytes, batch_spec, random_batch
from jaxload.data.manifest import Entry, read_manifest
from jaxload.data.record import BFLOAT16, Record, encode_record
from jaxload.data.source import MicroBatchSource
from jaxload.models.presets import preset
from jaxload.shapes.shape import Shape
from tests.data.datasets import make_bucket, write_dataset

SHAPES = (Shape(1, 2, 4), Shape(3, 4, 2))
BATCHES = (3, 2)
SPEC = {
    "latent": ArraySpec((2, 1, 4, 6, 16), BFLOAT16),
    "text": ArraySpec((2, 5, 8), BFLOAT16),
    "id": ArraySpec((2,), np.dtype(np.int32)),
}


def specs_of(arrays: dict[str, np.ndarray]) -> dict[str, ArraySpec]:
    return {name: ArraySpec(a.shape, a.dtype) for name, a in arrays.items()}


@pytest.mark.parametrize("name", ["wan-tiny", "mmdit-tiny"])
def test_the_source_delivers_what_a_program_takes(name: str, tmp_path: Path):
    model, rng = preset(name), np.random.default_rng(0)
    samples = []
    for i, shape in enumerate(SHAPES * 6):
        size = (shape.frames, shape.height, shape.width, model.channels)
        # Shorter than the model's texts, and longer.
        num_tokens = int(rng.integers(1, 2 * model.num_text_tokens))
        text = np.ones((num_tokens, model.text_dim))
        entry = Entry(
            id=str(i), source="", caption="", text_tokens=num_tokens, shape=shape
        )
        record = Record(latent=rng.standard_normal(size), text=text)
        samples.append((entry, encode_record(record)))
    write_dataset(tmp_path / "set", samples)
    manifest = read_manifest(tmp_path / "set")
    schedule = Lockstep(
        buckets=tuple(
            make_bucket(shape, batch, len(manifest.rows_by_shape[shape]))
            for shape, batch in zip(SHAPES, BATCHES, strict=True)
        ),
        seed=0,
        num_replicas=1,
        accumulate=2,
    )
    source = MicroBatchSource(
        manifest,
        schedule,
        replicas=[0],
        num_at_once=1,
        num_steps=5,
        num_text_tokens=model.num_text_tokens,
    )
    seen = set()
    for i in range(len(source)):
        batch = source[i]
        assert batch is not None
        expected = batch_spec(model, schedule.programs[batch.bucket])
        assert specs_of(dict(batch.arrays)) == expected
        seen.add(batch.bucket)
    assert seen == {0, 1}


def test_the_samples_of_the_whole_group_are_the_first_axis():
    program = Program(form=Grid(2, 4, 6), batch=6, layout=Layout(batch=3))
    spec = batch_spec(preset("wan-tiny"), program)
    assert {array.shape[0] for array in spec.values()} == {6}
    assert spec["latent"].shape[1:4] == (2, 4, 6)


def test_random_batches_are_as_the_spec_says():
    batch = random_batch(SPEC, seed=0)
    assert specs_of(batch) == SPEC
    assert sum(array.nbytes for array in batch.values()) == batch_bytes(SPEC)
    for name in ("latent", "text"):
        values = batch[name].astype(np.float32)
        assert np.isfinite(values).all()
        assert values.std() == pytest.approx(1.0, abs=0.3)
    assert batch["id"].tolist() == [0, 1]


def test_random_batches_follow_from_the_seed():
    one, again, other = (random_batch(SPEC, seed=seed) for seed in (0, 0, 1))
    for name in ("latent", "text"):
        np.testing.assert_array_equal(one[name], again[name])
        assert (one[name] != other[name]).mean() > 0.9
