"""Tests of jaxload.data.batch_spec."""

from pathlib import Path

import numpy as np
import pytest

from jaxload.balance.form import Grid, Length
from jaxload.balance.program import Layout, Program
from jaxload.balance.schedule import Lockstep
from jaxload.data.batch_spec import ArraySpec, batch_bytes, batch_spec, random_batch
from jaxload.data.manifest import Entry, read_manifest
from jaxload.data.record import BFLOAT16, Record, encode_record
from jaxload.data.source import MicroBatchSource
from jaxload.models.embeddings import MAX_POSITION
from jaxload.models.presets import preset
from jaxload.shapes.shape import Shape
from tests.data.datasets import make_bucket, write_dataset

SHAPES = (Shape(1, 2, 4), Shape(3, 4, 2))
BATCHES = (3, 2)
SPEC = {
    "tokens": ArraySpec((2, 6, 64), BFLOAT16),
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
        size = (shape.tokens, 4 * model.channels)
        # Shorter than the model's texts, and longer.
        num_tokens = int(rng.integers(1, 2 * model.num_text_tokens))
        text = np.ones((num_tokens, model.text_dim))
        entry = Entry(
            id=str(i), source="", caption="", text_tokens=num_tokens, shape=shape
        )
        record = Record(tokens=rng.standard_normal(size), text=text)
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
    assert spec["tokens"].shape[1:] == (12, 64)


def test_random_batches_are_as_the_spec_says():
    batch = random_batch(SPEC, seed=0)
    assert specs_of(batch) == SPEC
    assert sum(array.nbytes for array in batch.values()) == batch_bytes(SPEC)
    for name in ("tokens", "text"):
        values = batch[name].astype(np.float32)
        assert np.isfinite(values).all()
        assert values.std() == pytest.approx(1.0, abs=0.3)
    assert batch["id"].tolist() == [0, 1]


def test_random_batches_follow_from_the_seed():
    one, again, other = (random_batch(SPEC, seed=seed) for seed in (0, 0, 1))
    for name in ("tokens", "text"):
        np.testing.assert_array_equal(one[name], again[name])
        assert (one[name] != other[name]).mean() > 0.9


LENGTHS = Program(form=Length(31), batch=3)


def test_rows_of_a_length_have_grids_of_their_own():
    spec = batch_spec(preset("wan-tiny"), LENGTHS)
    assert list(spec) == ["tokens", "grid", "text", "id"]
    assert spec["tokens"].shape == (3, 31, 64)
    assert spec["grid"] == ArraySpec((3, 3), np.dtype(np.int32))
    batch = random_batch(spec, seed=0)
    assert specs_of(batch) == spec
    assert batch["grid"].prod(axis=1).tolist() == [31] * 3


def test_random_rows_are_as_long_as_asked():
    spec = batch_spec(preset("wan-tiny"), LENGTHS)
    batch = random_batch(spec, seed=0, lengths=[1, 17, 31])
    assert batch["grid"].prod(axis=1).tolist() == [1, 17, 31]
    for tokens, length in zip(batch["tokens"], (1, 17, 31), strict=True):
        assert (tokens[:length] != 0).all()
        assert not tokens[length:].any()


@pytest.mark.parametrize("length", [1, 2, 1_023, 1_025, 32_760, 75_600, 1_048_583])
def test_random_grids_fill_long_rows_within_the_limit_of_the_models(length: int):
    spec = {
        "tokens": ArraySpec((1, length, 1), BFLOAT16),
        "grid": ArraySpec((1, 3), np.dtype(np.int32)),
        "id": ArraySpec((1,), np.dtype(np.int32)),
    }
    grid = random_batch(spec, seed=0)["grid"][0]
    assert 1 <= grid.min() <= grid.max() <= MAX_POSITION
    assert 0.999 * length <= grid.prod() <= length
