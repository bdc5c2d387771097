"""Tests of jaxload.data.source."""

import dataclasses
from pathlib import Path

import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from rich.console import Console

from jaxload.balance.schedule import Lockstep
from jaxload.config import Config
from jaxload.data.dataset import open_dataset
from jaxload.data.manifest import Manifest
from jaxload.data.record import decode_record
from jaxload.data.source import Batch, MicroBatchSource, micro_batches
from jaxload.errors import InputError
from jaxload.planning import plan_run


def make_schedule(config: Config, manifest: Manifest, *, num_replicas=1) -> Lockstep:
    plan = plan_run(config, manifest, num_replicas=num_replicas)
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


def test_element_i_is_what_the_schedule_names(
    debug_config: Config, debug_manifest: Manifest, source: MicroBatchSource
):
    schedule = make_schedule(debug_config, debug_manifest)
    for i in range(len(source)):
        batch, micro = source[i], schedule.micro_batch(i, 0)
        bucket = schedule.buckets[micro.bucket]
        rows = debug_manifest.rows_by_shape()[bucket.shape][micro.members]
        np.testing.assert_array_equal(batch["id"], rows)
        shape = bucket.shape
        assert batch["latent"].shape == (
            bucket.batch,
            shape.frames,
            shape.height,
            shape.width,
            16,
        )


def test_leaves_hold_the_records(debug_manifest: Manifest, source: MicroBatchSource):
    records = grain.sources.ArrayRecordDataSource(debug_manifest.shard_paths())
    batch = source[3]
    for i, row in enumerate(batch["id"]):
        record = decode_record(records[int(row)])
        np.testing.assert_array_equal(batch["latent"][i], record.latent)
        count = len(record.text)
        np.testing.assert_array_equal(batch["text"][i, :count], record.text)
        assert not batch["text"][i, count:].any()


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


def test_resumes_at_every_step(debug_config: Config, source: MicroBatchSource):
    assert_equal_output_after_checkpoint(
        micro_batches(source, debug_config.data, start=0)
    )


def test_starting_later_gives_the_rest(debug_config: Config, source: MicroBatchSource):
    late = list(micro_batches(source, debug_config.data, start=5))
    assert len(late) == len(source) - 5
    np.testing.assert_array_equal(late[0]["id"], source[5]["id"])


def test_a_record_of_another_shape_is_named(
    debug_config: Config, debug_manifest: Manifest
):
    table = debug_manifest.table
    swapped = table.take(list(reversed(range(len(table)))))
    manifest = dataclasses.replace(debug_manifest, table=swapped)
    source = make_source(debug_config, manifest, make_schedule(debug_config, manifest))
    with pytest.raises(InputError, match=r"record \d+: expected a latent of"):
        read_all(source)


def test_a_damaged_record_is_named(debug_config: Config, tmp_path: Path):
    data = dataclasses.replace(debug_config.data, path=str(tmp_path / "set"))
    manifest = open_dataset(data, debug_config.synthetic, Console(quiet=True))
    shard = tmp_path / "set" / "shard-00000.array_record"
    content = bytearray(shard.read_bytes())
    content[2_000:4_000] = bytes(2_000)  # The size stays what the manifest says.
    shard.write_bytes(content)
    source = make_source(debug_config, manifest, make_schedule(debug_config, manifest))
    with pytest.raises(InputError, match=r"shard-00000.*record \d+: cannot be read"):
        read_all(source)
