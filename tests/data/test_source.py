"""Tests of jaxload.data.source."""

import dataclasses
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import grain
import numpy as np
import pytest

from jaxload.balance.schedule import Lockstep, Schedule
from jaxload.config import Config
from jaxload.data.config import DataConfig
from jaxload.data.manifest import Entry, Manifest, read_manifest
from jaxload.data.record import Record, encode_record
from jaxload.data.source import HostBatch, MicroBatchSource
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from tests.data.datasets import (
    load_record,
    make_bucket,
    write_as_one_shard,
    write_dataset,
)

NUM_STEPS = 30


@pytest.fixture(scope="module")
def schedule(schedule_of: Callable[..., Lockstep]) -> Lockstep:
    return schedule_of()


def make_source(
    config: Config,
    manifest: Manifest,
    schedule: Schedule,
    *,
    replicas: Sequence[int] = (0,),
    num_at_once: int = 1,
) -> MicroBatchSource:
    return MicroBatchSource(
        manifest,
        schedule,
        replicas=replicas,
        num_at_once=num_at_once,
        num_steps=NUM_STEPS,
        num_text_tokens=config.model.num_text_tokens,
    )


def read_all(source: MicroBatchSource) -> list[HostBatch]:
    """Reads all elements, except those that are None."""
    batches = [source[i] for i in range(len(source))]
    return [batch for batch in batches if batch is not None]


@pytest.fixture
def source(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
) -> MicroBatchSource:
    return make_source(debug_config, debug_manifest, schedule)


@pytest.fixture
def copied(debug_manifest: Manifest, tmp_path: Path) -> Manifest:
    """Copies the debug dataset into one shard, which tests may damage."""
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
    debug_manifest: Manifest, schedule: Lockstep, source: MicroBatchSource
):
    batches = read_all(source)
    assert len(batches) == len(source) == NUM_STEPS
    for i, batch in enumerate(batches):
        micro = schedule.micro_batch(i, 0)
        assert batch[:-1] == (i, 0, micro.bucket)
        bucket = schedule.buckets[micro.bucket]
        rows = debug_manifest.rows_by_shape[bucket.shape][micro.members]
        np.testing.assert_array_equal(batch.arrays["id"], rows)
        shape = bucket.shape
        size = (bucket.batch, shape.frames, shape.height, shape.width, 16)
        assert batch.arrays["latent"].shape == size


def test_leaves_hold_the_records(
    debug_config: Config, debug_manifest: Manifest, source: MicroBatchSource
):
    # Read by others: ArrayRecord's source, and the safetensors library.
    paths = [str(debug_manifest.directory / s.name) for s in debug_manifest.shards]
    records = grain.sources.ArrayRecordDataSource(paths)
    arrays = read_all(source)[3].arrays
    assert arrays["text"].shape[1] == debug_config.model.num_text_tokens
    for i, row in enumerate(arrays["id"].tolist()):
        record = load_record(records[row])
        np.testing.assert_array_equal(arrays["latent"][i], record["latent"])
        count = len(record["text"])
        np.testing.assert_array_equal(arrays["text"][i, :count], record["text"])
        assert not arrays["text"][i, count:].any()


def test_longer_text_is_cut(
    debug_manifest: Manifest, schedule: Lockstep, source: MicroBatchSource
):
    cut = MicroBatchSource(
        debug_manifest,
        schedule,
        replicas=[0],
        num_at_once=1,
        num_steps=1,
        num_text_tokens=3,
    )
    found, whole = read_all(cut)[0], read_all(source)[0]
    np.testing.assert_array_equal(found.arrays["text"], whole.arrays["text"][:, :3])


@pytest.mark.parametrize(
    ("num_at_once", "replicas"),
    [
        (1, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
        (2, [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]),
        (4, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]),
    ],
)
def test_replicas_that_run_at_the_same_time_take_turns(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule_of: Callable[..., Lockstep],
    num_at_once: int,
    replicas: list[int],
):
    schedule = schedule_of(num_replicas=4, accumulate=3)
    source = make_source(
        debug_config,
        debug_manifest,
        schedule,
        replicas=range(4),
        num_at_once=num_at_once,
    )
    assert source.elements_per_step == 12
    batches = read_all(source)
    assert [batch.replica for batch in batches] == NUM_STEPS * replicas
    assert [batch.step for batch in batches] == np.arange(NUM_STEPS).repeat(12).tolist()
    for replica in range(4):
        of_replica = [batch for batch in batches if batch.replica == replica]
        for micro_step, batch in enumerate(of_replica):
            micro = schedule.micro_batch(micro_step, replica)
            assert batch.bucket == micro.bucket
            shape = schedule.buckets[micro.bucket].shape
            rows = debug_manifest.rows_by_shape[shape][micro.members]
            np.testing.assert_array_equal(batch.arrays["id"], rows)


def test_hosts_together_read_the_global_batch(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule_of: Callable[..., Lockstep],
):
    schedule = schedule_of(num_replicas=4)

    def read(replicas: Sequence[int]) -> dict[tuple[int, int], list[int]]:
        source = make_source(
            debug_config,
            debug_manifest,
            schedule,
            replicas=replicas,
            num_at_once=len(replicas),
        )
        return {(b.step, b.replica): b.arrays["id"].tolist() for b in read_all(source)}

    whole = read([0, 1, 2, 3])
    assert len(whole) == 4 * NUM_STEPS
    assert read([0, 1]) | read([2, 3]) == whole


def test_a_host_opens_only_shards_that_it_needs(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule: Lockstep,
    source: MicroBatchSource,
    tmp_path: Path,
):
    first = source[0]
    assert first is not None
    rows = first.arrays["id"].tolist()
    shutil.copytree(debug_manifest.directory, tmp_path / "set")
    there = dataclasses.replace(debug_manifest, directory=tmp_path / "set")
    needed = {there.locate(row).split(",")[0] for row in rows}
    for shard in there.shards:
        path = there.directory / shard.name
        if str(path) not in needed:
            path.unlink()
    again = make_source(debug_config, there, schedule)[0]
    assert again is not None
    np.testing.assert_array_equal(again.arrays["id"], rows)


def test_a_record_of_another_shape_is_named(
    debug_config: Config, copied: Manifest, schedule: Lockstep
):
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
    buckets = (make_bucket(shape, batch=3, num_samples=3),)
    schedule = Lockstep(buckets=buckets, seed=0, num_replicas=1, accumulate=1)
    source = make_source(debug_config, read_manifest(tmp_path / "set"), schedule)
    with pytest.raises(InputError, match=r"record \d: .*text of width \d, got .* \d;"):
        read_all(source)


def test_a_row_that_points_nowhere_is_named(
    debug_config: Config, copied: Manifest, schedule: Lockstep
):
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


def test_a_missing_shard_is_named(
    debug_config: Config, copied: Manifest, schedule: Lockstep
):
    source = make_source(debug_config, copied, schedule)
    (copied.directory / copied.shards[0].name).unlink()
    with pytest.raises(InputError, match=r"shard-00000.*record \d+: cannot be read"):
        read_all(source)


def test_a_flipped_byte_never_goes_unnoticed(
    debug_config: Config, copied: Manifest, schedule: Lockstep
):
    """Asserts that a flipped bit in a shard raises an error or changes no array."""
    path = copied.directory / copied.shards[0].name
    good, errors = path.read_bytes(), []
    expected = read_all(make_source(debug_config, copied, schedule))
    for offset in np.random.default_rng(0).integers(len(good), size=60).tolist():
        content = bytearray(good)
        content[offset] ^= 0x10
        path.write_bytes(content)
        try:
            found = read_all(make_source(debug_config, copied, schedule))
        except InputError as error:
            errors.append(str(error))
            continue
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.arrays["latent"], two.arrays["latent"])
            np.testing.assert_array_equal(one.arrays["text"], two.arrays["text"])
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
