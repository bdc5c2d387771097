"""Tests of jaxload.data.source."""

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import grain
import numpy as np
import pytest

from jaxload.balance.form import Length
from jaxload.balance.schedule import Lockstep, Schedule
from jaxload.config import Config
from jaxload.data.config import DataConfig
from jaxload.data.loader import Loader
from jaxload.data.manifest import Entry, Manifest, read_manifest
from jaxload.data.record import Record, encode_record
from jaxload.data.source import HostBatch, MicroBatchSource, open_records
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from tests.balance.grid_samples import shape_of
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
        rows = debug_manifest.rows_by_shape[shape_of(bucket)][micro.members]
        np.testing.assert_array_equal(batch.arrays["id"], rows)
        assert batch.arrays["tokens"].shape == (bucket.batch, bucket.tokens, 64)


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
        np.testing.assert_array_equal(arrays["tokens"][i], record["tokens"])
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
            shape = shape_of(schedule.buckets[micro.bucket])
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
    shapes, codes = copied.shape_codes
    copied.__dict__["shape_codes"] = shapes, (codes + 1) % len(shapes)
    source = make_source(debug_config, copied, schedule)
    message = r"record \d+: expected \d+ tokens by the manifest, .* got \(\d+, 64\)"
    with pytest.raises(InputError, match=message):
        read_all(source)


LENGTHS = (Length(4), Length(12))
SIZES = {  # Shapes of samples, and the form and the tokens that run of each.
    Shape(1, 2, 2): (0, 1),
    Shape(2, 2, 4): (0, 4),
    Shape(1, 4, 6): (1, 6),
    Shape(3, 4, 4): (1, 12),
    Shape(6, 4, 4): (1, 12),  # Three of its six frames.
}


def write_lengths(directory: Path, num_samples: int) -> Manifest:
    """Writes samples of all shapes in random order, with random tokens."""
    rng, samples = np.random.default_rng(0), []
    for i in range(num_samples):
        shape = list(SIZES)[rng.integers(len(SIZES))]
        record = Record(
            tokens=rng.standard_normal((shape.tokens, 64)), text=np.ones((3, 8))
        )
        entry = Entry(id=f"{i}", source="", caption="", text_tokens=3, shape=shape)
        samples.append((entry, encode_record(record)))
    write_dataset(directory, samples, fingerprint={"is_causal": True})
    return read_manifest(directory)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_rows_of_a_length_hold_the_tokens_that_run_and_zeros(
    debug_config: Config, tmp_path: Path, num_workers: int
):
    manifest = write_lengths(tmp_path / "set", 50)
    shapes, codes = manifest.shape_codes
    shape_of = {row: shapes[code] for row, code in enumerate(codes.tolist())}
    wanted = [
        [row for row, shape in shape_of.items() if SIZES[shape][0] == index]
        for index in range(len(LENGTHS))
    ]
    buckets = tuple(
        make_bucket(form, batch, len(rows))
        for form, batch, rows in zip(LENGTHS, (5, 3), wanted, strict=True)
    )
    schedule = Lockstep(buckets=buckets, seed=0, num_replicas=1, accumulate=1)
    loader = Loader(
        manifest,
        schedule,
        DataConfig(path="", num_workers=num_workers),
        replicas=[0],
        num_at_once=1,
        num_steps=NUM_STEPS,
        num_text_tokens=debug_config.model.num_text_tokens,
    )
    records, lengths, num_steps = open_records(manifest), set(), 0
    with contextlib.closing(iter(loader)) as batches:
        for batch in batches:
            micro, arrays = schedule.micro_batch(num_steps, 0), batch.arrays
            num_steps += 1
            rows = np.array(wanted[micro.bucket])[micro.members]
            np.testing.assert_array_equal(arrays["id"], rows)
            for row, tokens, grid in zip(
                rows.tolist(), arrays["tokens"], arrays["grid"], strict=True
            ):
                assert len(tokens) == LENGTHS[micro.bucket].tokens
                length = SIZES[shape_of[row]][1]
                shape = shape_of[row]
                frames = length * shape.frames // shape.tokens
                assert tuple(grid) == shape.first_frames(frames).token_grid
                stored = load_record(records[row])["tokens"]
                np.testing.assert_array_equal(tokens[:length], stored[:length])
                assert not tokens[length:].any()
                lengths.add(length)
    assert num_steps == NUM_STEPS
    assert lengths == {1, 4, 6, 12}


def test_text_of_another_width_is_named(debug_config: Config, tmp_path: Path):
    shape = Shape(1, 2, 2)
    samples = []
    for i, width in enumerate((8, 8, 6)):
        record = Record(tokens=np.zeros((1, 64)), text=np.zeros((3, width)))
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
    claimed = dataclasses.replace(whole, num_records=2 * whole.num_records)
    masked = ((0, whole.num_records),)
    longer = dataclasses.replace(copied, shards=(claimed,), masked=masked)
    longer.__dict__["shape_codes"] = copied.shape_codes
    source = make_source(debug_config, longer, schedule)
    message = rf"{path}, record \d+: cannot be read"
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
            np.testing.assert_array_equal(one.arrays["tokens"], two.arrays["tokens"])
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
