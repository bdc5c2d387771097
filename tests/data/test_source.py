"""Tests of jaxload.data.source."""

import dataclasses
import re
import shutil
from pathlib import Path

import grain
import ml_dtypes
import numpy as np
import pytest
import safetensors

from jaxload.balance.bucket import Bucket
from jaxload.balance.schedule import Lockstep
from jaxload.config import Config
from jaxload.data.manifest import Entry, Manifest, read_manifest
from jaxload.data.record import Record, encode_record
from jaxload.data.source import Batch, DataConfig, MicroBatchSource
from jaxload.errors import InputError
from jaxload.planning.planner import plan_run, token_limit
from jaxload.shapes.shape import Shape
from tests.data.datasets import write_as_one_shard, write_dataset


def make_schedule(config: Config, manifest: Manifest, *, num_replicas=1) -> Lockstep:
    plan = plan_run(
        config,
        manifest,
        token_limit(config.balance.max_tokens),
        num_replicas=num_replicas,
    )
    return Lockstep(
        buckets=plan.buckets, seed=0, num_replicas=num_replicas, accumulate=1
    )


def make_source(config, manifest, schedule, replicas=(0,)) -> MicroBatchSource:
    return MicroBatchSource(
        manifest,
        schedule,
        replicas=replicas,
        num_micro_steps=30,
        num_text_tokens=config.model.num_text_tokens,
    )


def read_all(source: MicroBatchSource) -> list[Batch]:
    return [source[i] for i in range(len(source))]


@pytest.fixture
def source(debug_config: Config, debug_manifest: Manifest) -> MicroBatchSource:
    schedule = make_schedule(debug_config, debug_manifest)
    return make_source(debug_config, debug_manifest, schedule)


@pytest.fixture
def copied(debug_manifest: Manifest, tmp_path: Path) -> Manifest:
    """The debug data set, in one shard that may be damaged."""
    write_as_one_shard(debug_manifest, tmp_path / "set")
    return dataclasses.replace(
        debug_manifest,
        directory=tmp_path / "set",
        shards=(
            dataclasses.replace(
                debug_manifest.shards[0],
                name="shard-00000.array_record",
                num_records=len(debug_manifest),
            ),
        ),
    )


def test_element_i_is_what_the_schedule_names(
    debug_config: Config, debug_manifest: Manifest, source: MicroBatchSource
):
    schedule = make_schedule(debug_config, debug_manifest)
    for i in range(len(source)):
        batch, micro = source[i], schedule.micro_batch(i, 0)
        bucket = schedule.buckets[micro.bucket]
        rows = debug_manifest.rows_by_shape[bucket.shape][micro.members]
        np.testing.assert_array_equal(batch["id"], rows)
        shape = bucket.shape
        size = (bucket.batch, shape.frames, shape.height, shape.width, 16)
        assert batch["latent"].shape == size


def load_record(data: bytes) -> dict[str, np.ndarray]:
    """Reads a record with the safetensors library."""
    return {
        name: np.frombuffer(tensor["data"], ml_dtypes.bfloat16).reshape(tensor["shape"])
        for name, tensor in safetensors.deserialize(data)
    }


def test_leaves_hold_the_records(
    debug_config: Config, debug_manifest: Manifest, source: MicroBatchSource
):
    # Read by others: ArrayRecord's source, and the safetensors library.
    paths = [str(debug_manifest.directory / s.name) for s in debug_manifest.shards]
    records = grain.sources.ArrayRecordDataSource(paths)
    batch = source[3]
    assert batch["text"].shape[1] == debug_config.model.num_text_tokens
    for i, row in enumerate(batch["id"].tolist()):
        record = load_record(records[row])
        np.testing.assert_array_equal(batch["latent"][i], record["latent"])
        count = len(record["text"])
        np.testing.assert_array_equal(batch["text"][i, :count], record["text"])
        assert not batch["text"][i, count:].any()


def test_longer_text_is_cut(debug_config: Config, debug_manifest: Manifest):
    schedule = make_schedule(debug_config, debug_manifest)
    cut = MicroBatchSource(
        debug_manifest, schedule, replicas=[0], num_micro_steps=1, num_text_tokens=3
    )[0]
    whole = make_source(debug_config, debug_manifest, schedule)[0]
    np.testing.assert_array_equal(cut["text"], whole["text"][:, :3])


def test_hosts_together_read_the_global_batch(
    debug_config: Config, debug_manifest: Manifest
):
    schedule = make_schedule(debug_config, debug_manifest, num_replicas=4)
    whole = make_source(debug_config, debug_manifest, schedule, (0, 1, 2, 3))
    halves = [
        make_source(debug_config, debug_manifest, schedule, replicas)
        for replicas in ((0, 1), (2, 3))
    ]
    for i in range(6):
        ids = np.concatenate([half[i]["id"] for half in halves])
        np.testing.assert_array_equal(ids, whole[i]["id"])


def test_a_host_opens_only_shards_that_it_needs(
    debug_config: Config, debug_manifest: Manifest, tmp_path: Path
):
    schedule = make_schedule(debug_config, debug_manifest)
    rows = make_source(debug_config, debug_manifest, schedule)[0]["id"].tolist()
    shutil.copytree(debug_manifest.directory, tmp_path / "set")
    there = dataclasses.replace(debug_manifest, directory=tmp_path / "set")
    needed = {there.locate(row).split(",")[0] for row in rows}
    for shard in there.shards:
        path = there.directory / shard.name
        if str(path) not in needed:
            path.unlink()
    source = make_source(debug_config, there, schedule)
    np.testing.assert_array_equal(source[0]["id"], rows)


def test_a_record_of_another_shape_is_named(debug_config: Config, copied: Manifest):
    schedule = make_schedule(debug_config, copied)
    shapes = list(copied.rows_by_shape)
    rows = {
        shape: np.resize(copied.rows_by_shape[other], len(copied.rows_by_shape[shape]))
        for shape, other in zip(shapes, shapes[1:] + shapes[:1], strict=True)
    }
    copied.__dict__["rows_by_shape"] = rows
    source = make_source(debug_config, copied, schedule)
    with pytest.raises(InputError, match=r"record \d+: expected a latent of"):
        read_all(source)


def test_text_of_another_width_is_named(debug_config: Config, tmp_path: Path):
    shape = Shape(1, 2, 2)
    samples = []
    for i, width in enumerate((8, 8, 6)):
        record = Record(latent=np.zeros((1, 2, 2, 16)), text=np.zeros((3, width)))
        entry = Entry(id=str(i), source="", caption="", text_tokens=3, shape=shape)
        samples.append((entry, encode_record(record)))
    write_dataset(tmp_path / "set", samples)
    bucket = Bucket(shape=shape, batch=3, num_samples=3, cost=1.0)
    schedule = Lockstep(buckets=(bucket,), seed=0, num_replicas=1, accumulate=1)
    source = make_source(debug_config, read_manifest(tmp_path / "set"), schedule)
    with pytest.raises(InputError, match=r"record \d: .*text of width \d, got .* \d;"):
        read_all(source)


def test_a_row_that_points_nowhere_is_named(debug_config: Config, copied: Manifest):
    schedule = make_schedule(debug_config, copied)
    whole = copied.shards[0]
    path = copied.directory / whole.name
    claimed = dataclasses.replace(whole, num_records=whole.num_records + 5)
    longer = dataclasses.replace(copied, shards=(claimed,))
    shape = schedule.buckets[0].shape
    longer.__dict__["rows_by_shape"] = {
        **copied.rows_by_shape,
        shape: copied.rows_by_shape[shape] * 0 + whole.num_records + 2,
    }
    source = make_source(debug_config, longer, schedule)
    message = rf"{path}, record {whole.num_records + 2}: cannot be read"
    with pytest.raises(InputError, match=message):
        read_all(source)


def test_a_missing_shard_is_named(debug_config: Config, copied: Manifest):
    source = make_source(debug_config, copied, make_schedule(debug_config, copied))
    (copied.directory / copied.shards[0].name).unlink()
    with pytest.raises(InputError, match=r"shard-00000.*record \d+: cannot be read"):
        read_all(source)


def test_a_flipped_byte_never_goes_unnoticed(debug_config: Config, copied: Manifest):
    """Each byte of a shard that is flipped is an error, or changes nothing at all."""
    schedule = make_schedule(debug_config, copied)
    path = copied.directory / copied.shards[0].name
    good, errors = path.read_bytes(), []
    expected = read_all(make_source(debug_config, copied, schedule))
    for place in np.random.default_rng(0).integers(len(good), size=60).tolist():
        content = bytearray(good)
        content[place] ^= 0x10
        path.write_bytes(content)
        try:
            found = read_all(make_source(debug_config, copied, schedule))
        except InputError as error:
            errors.append(str(error))
            continue
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one["latent"], two["latent"])
            np.testing.assert_array_equal(one["text"], two["text"])
    assert len(errors) > 10
    assert all(re.search(rf"{path}, record \d+: cannot be", e) for e in errors)


@pytest.mark.parametrize(
    ("field", "value", "least"),
    [("num_workers", -1, 0), ("num_threads", 0, 1), ("num_prefetch", 0, 1)],
)
def test_numbers_are_checked(field: str, value: int, least: int):
    message = rf"data.{field}={value}: expected {least} or more"
    with pytest.raises(InputError, match=message):
        dataclasses.replace(DataConfig(path="x"), **{field: value})
