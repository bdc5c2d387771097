"""Tests of jaxload.data.loader: the same batches, wherever reading starts."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from grain.multiprocessing import SharedMemoryArray

from jaxload.balance.bucket import Bucket
from jaxload.balance.schedule import Lockstep
from jaxload.config import Config
from jaxload.data.loader import ReadAhead, ReadAheadIterator, micro_batch_dataset
from jaxload.data.manifest import Entry, Manifest, read_manifest
from jaxload.data.record import Record, encode_record
from jaxload.data.source import Batch
from jaxload.errors import InputError
from jaxload.planning.planner import plan_run, token_limit
from jaxload.shapes.shape import Shape
from tests.data.datasets import write_as_one_shard, write_dataset

NUM_REPLICAS = 4
NUM_MICRO_STEPS = 24


@pytest.fixture(scope="module")
def schedule(debug_config: Config, debug_manifest: Manifest) -> Lockstep:
    plan = plan_run(
        debug_config,
        debug_manifest,
        token_limit(debug_config.balance.max_tokens),
        num_replicas=NUM_REPLICAS,
    )
    schedule = Lockstep(
        buckets=plan.buckets, seed=0, num_replicas=NUM_REPLICAS, accumulate=1
    )
    assert schedule.epoch(NUM_MICRO_STEPS) > 2, "epochs end within what is read"
    return schedule


class Readers:
    """The loaders of some hosts, each with its share of the replicas."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        schedule: Lockstep,
        *,
        num_hosts: int = 1,
        num_workers: int = 0,
    ):
        data = dataclasses.replace(config.data, num_workers=num_workers)
        each = NUM_REPLICAS // num_hosts
        self.hosts: list[ReadAheadIterator] = [
            iter(
                ReadAhead(
                    micro_batch_dataset(
                        manifest,
                        schedule,
                        replicas=range(host * each, (host + 1) * each),
                        num_micro_steps=NUM_MICRO_STEPS,
                        num_text_tokens=config.model.num_text_tokens,
                    ),
                    data,
                )
            )
            for host in range(num_hosts)
        ]

    def state(self) -> str:
        """What a checkpoint would hold: one state, which all hosts share."""
        states = {json.dumps(host.get_state()) for host in self.hosts}
        (state,) = states
        return state

    def read(self, count: int) -> list[Batch]:
        """Global batches: what the hosts read, put together."""
        return [join([next(host) for host in self.hosts]) for _ in range(count)]

    def restore(self, state: str) -> "Readers":
        for host in self.hosts:
            host.set_state(json.loads(state))
        return self

    def close(self) -> None:
        for host in self.hosts:
            host.close()


def join(batches: Sequence[Batch]) -> Batch:
    return {
        name: np.concatenate([np.array(batch[name]) for batch in batches])
        for name in batches[0]
    }


@pytest.fixture(scope="module")
def unbroken(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
) -> list[Batch]:
    readers = Readers(debug_config, debug_manifest, schedule)
    batches = readers.read(NUM_MICRO_STEPS)
    with pytest.raises(StopIteration):
        readers.read(1)
    return batches


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    for one, two in zip(found, expected, strict=True):
        assert one.keys() == two.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


def test_restores_at_every_step(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
):
    dataset = micro_batch_dataset(
        debug_manifest,
        schedule,
        replicas=[1, 3],
        num_micro_steps=NUM_MICRO_STEPS,
        num_text_tokens=4,
    )
    assert_equal_output_after_checkpoint(ReadAhead(dataset, debug_config.data))


def test_the_state_is_a_few_bytes(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
):
    readers = Readers(debug_config, debug_manifest, schedule, num_hosts=2)
    readers.read(7)
    assert readers.state() == '{"micro_step": 7}'


def test_a_second_resume_and_an_epochs_end(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule: Lockstep,
    unbroken: list[Batch],
):
    ends = [s for s in range(1, NUM_MICRO_STEPS) if schedule.epoch(s) % 1 == 0]
    assert ends
    stops = [0, 3, ends[0], ends[0] + 1, NUM_MICRO_STEPS]
    state, found = '{"micro_step": 0}', []
    for start, stop in itertools.pairwise(stops):
        readers = Readers(debug_config, debug_manifest, schedule).restore(state)
        found += readers.read(stop - start)
        state = readers.state()
    assert_same(found, unbroken)


@pytest.mark.slow
def test_other_workers_and_other_hosts_read_the_same(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule: Lockstep,
    unbroken: list[Batch],
):
    """2 hosts, then 1, 4 and 1, with 1, 2, 0 and 3 worker processes."""
    settings = [(2, 1), (1, 2), (4, 0), (1, 3)]
    state, found = '{"micro_step": 0}', []
    for num_hosts, num_workers in settings:
        readers = Readers(
            debug_config,
            debug_manifest,
            schedule,
            num_hosts=num_hosts,
            num_workers=num_workers,
        ).restore(state)
        found += readers.read(NUM_MICRO_STEPS // len(settings))
        state = readers.state()
        readers.close()
    assert_same(found, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_damage_is_named_by_whoever_reads(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule: Lockstep,
    tmp_path: Path,
    num_workers: int,
):
    write_as_one_shard(debug_manifest, tmp_path / "set")
    shard = dataclasses.replace(
        debug_manifest.shards[0],
        name="shard-00000.array_record",
        num_records=len(debug_manifest),
    )
    there = dataclasses.replace(
        debug_manifest, directory=tmp_path / "set", shards=(shard,)
    )
    path = there.directory / shard.name
    content = path.read_bytes()
    path.write_bytes(content[:5_000] + bytes(1_000) + content[6_000:])
    readers = Readers(debug_config, there, schedule, num_workers=num_workers)
    with pytest.raises(InputError, match=r"shard-00000.*record \d+: cannot be read"):
        readers.read(NUM_MICRO_STEPS)
    readers.close()


@pytest.mark.slow
def test_large_batches_cross_in_shared_memory(debug_config: Config, tmp_path: Path):
    shape, rng = Shape(2, 60, 104), np.random.default_rng(0)
    records = [
        Record(latent=rng.standard_normal((2, 60, 104, 16)), text=np.ones((i, 64)))
        for i in range(6)
    ]
    write_dataset(
        tmp_path / "set",
        [
            (
                Entry(id=str(i), source="", caption="", text_tokens=i, shape=shape),
                encode_record(record),
            )
            for i, record in enumerate(records)
        ],
    )
    bucket = Bucket(shape=shape, batch=3, num_samples=6, cost=1.0)
    source = micro_batch_dataset(
        read_manifest(tmp_path / "set"),
        Lockstep(buckets=(bucket,), seed=0, num_replicas=1, accumulate=1),
        replicas=[0],
        num_micro_steps=8,
        num_text_tokens=4,
    )
    data = dataclasses.replace(debug_config.data, num_workers=2)
    batches = iter(ReadAhead(source, data))
    for _ in range(8):
        batch = next(batches)
        assert isinstance(batch["latent"], SharedMemoryArray)
        assert not isinstance(batch["text"], SharedMemoryArray)
        for row, latent in zip(batch["id"].tolist(), batch["latent"], strict=True):
            expected = records[row].latent.astype(latent.dtype)
            np.testing.assert_array_equal(latent, expected)
        lengths = (batch["text"].astype(float).sum(axis=2) > 0).sum(axis=1)
        np.testing.assert_array_equal(lengths, np.minimum(batch["id"], 4))
    batches.close()
