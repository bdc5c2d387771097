"""Tests of jaxload.data.loader: batches do not depend on where reading starts."""

import dataclasses
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cloudpickle
import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from grain.multiprocessing import SharedMemoryArray

from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Pattern
from jaxload.balance.schedule import Lockstep, Schedule
from jaxload.config import Config
from jaxload.data import source as source_module
from jaxload.data.loader import Loader, LoaderIterator
from jaxload.data.manifest import Entry, Manifest, read_manifest
from jaxload.data.record import Record, encode_record
from jaxload.data.source import HostBatch, open_records
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from tests import process_groups
from tests.data.datasets import (
    assert_same,
    make_bucket,
    read_one_by_one,
    write_as_one_shard,
    write_dataset,
)

NUM_REPLICAS = 4
NUM_STEPS = 24
NUM_FEW_STEPS = 8


@pytest.fixture(scope="module")
def schedule(schedule_of: Callable[..., Lockstep]) -> Lockstep:
    schedule = schedule_of(num_replicas=NUM_REPLICAS)
    assert schedule.epoch(NUM_STEPS) > 2, "epochs end within what is read"
    return schedule


@pytest.fixture(scope="module")
def mixed(debug_manifest: Manifest) -> Mixed:
    """Returns a schedule of replica-steps of 0 to 7 micro-batches, seven an epoch."""
    first, second, third = (
        make_bucket(shape, batch, len(rows), cost)
        for batch, cost, (shape, rows) in zip(
            (3, 2, 1),
            (2.5, 1.0, 4.0),
            debug_manifest.rows_by_shape.items(),
            strict=True,
        )
    )
    mixed = Mixed(
        buckets=(first, second, third),
        patterns=(
            Pattern(counts=(2, 0, 0), times=2),
            Pattern(counts=(0, 1, 5), times=2),
            Pattern(counts=(1, 2, 0), times=1),
        ),
        # Seven samples of the second shape are left: the last micro-batch of two is
        # full in every other epoch.
        rest=(Pattern(counts=(2, 3, 2), times=1), Pattern(counts=(0, 1, 0), times=1)),
        seed=0,
        num_replicas=NUM_REPLICAS,
    )
    counts = [mixed.step_counts(step).sum(axis=1) for step in range(NUM_STEPS)]
    assert set(np.concatenate(counts).tolist()) == {0, 1, 2, 3, 6, 7}
    return mixed


def load(
    config: Config,
    manifest: Manifest,
    schedule: Schedule,
    *,
    replicas: Sequence[int] = range(NUM_REPLICAS),
    num_at_once: int = NUM_REPLICAS,
    num_steps: int = NUM_STEPS,
    num_workers: int = 0,
) -> Loader:
    return Loader(
        manifest,
        schedule,
        dataclasses.replace(config.data, num_workers=num_workers),
        replicas=replicas,
        num_at_once=num_at_once,
        num_steps=num_steps,
        num_text_tokens=config.model.num_text_tokens,
    )


class Readers:
    """Loaders of several simulated hosts, each with its share of the replicas."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        schedule: Schedule,
        *,
        num_hosts: int = 1,
        num_workers: int = 0,
    ):
        each = NUM_REPLICAS // num_hosts
        self._schedule = schedule
        self._replicas = [
            range(host * each, (host + 1) * each) for host in range(num_hosts)
        ]
        self._hosts: list[LoaderIterator] = [
            iter(
                load(
                    config,
                    manifest,
                    schedule,
                    replicas=replicas,
                    num_at_once=each,
                    num_workers=num_workers,
                )
            )
            for replicas in self._replicas
        ]

    def state(self) -> str:
        """Returns the state for a checkpoint, which must be equal on all hosts."""
        states = {json.dumps(host.get_state()) for host in self._hosts}
        (state,) = states
        return state

    def read(self, num_steps: int) -> list[HostBatch]:
        """Reads steps on all hosts; the replicas of each step are in order."""
        batches = []
        for step in range(self._step(), self._step() + num_steps):
            counts = self._schedule.step_counts(step).sum(axis=1)
            of_step = [
                next(host)
                for host, replicas in zip(self._hosts, self._replicas, strict=True)
                for _ in range(counts[list(replicas)].sum())
            ]
            assert {batch.step for batch in of_step} == {step}
            batches += sorted(of_step, key=lambda batch: batch.replica)
        return batches

    def restore(self, state: str) -> "Readers":
        for host in self._hosts:
            host.set_state(json.loads(state))
        return self

    def close(self) -> None:
        for host in self._hosts:
            host.close()

    def _step(self) -> int:
        return json.loads(self.state())["step"]


def read_unbroken(
    config: Config, manifest: Manifest, schedule: Schedule
) -> list[HostBatch]:
    readers = Readers(config, manifest, schedule)
    batches = readers.read(NUM_STEPS)
    with pytest.raises(StopIteration):
        readers.read(1)
    return batches


@pytest.fixture(scope="module")
def unbroken(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
) -> list[HostBatch]:
    return read_unbroken(debug_config, debug_manifest, schedule)


class WholeSteps(grain.IterDataset[list[HostBatch]]):
    """Loader wrapper that yields whole steps, with all their micro-batches."""

    def __init__(self, loader: Loader, counts: Sequence[int]):
        super().__init__()
        self._loader = loader
        self._counts = counts

    def __iter__(self) -> "WholeStepsIterator":
        return WholeStepsIterator(iter(self._loader), self._counts)


class WholeStepsIterator(grain.DatasetIterator[list[HostBatch]]):
    """Iterator over whole steps."""

    def __init__(self, batches: LoaderIterator, counts: Sequence[int]):
        super().__init__()
        self._batches = batches
        self._counts = counts

    def __next__(self) -> list[HostBatch]:
        step = self._batches.get_state()["step"]
        if step == len(self._counts):
            raise StopIteration
        return [next(self._batches) for _ in range(self._counts[step])]

    def get_state(self) -> dict[str, int]:
        return self._batches.get_state()

    def set_state(self, state: dict[str, int]) -> None:
        self._batches.set_state(state)


def test_restores_at_every_micro_batch_where_each_is_a_step(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
):
    loader = load(debug_config, debug_manifest, schedule, replicas=[1])
    assert_equal_output_after_checkpoint(loader)


@pytest.mark.parametrize("policy", ["lockstep", "mixed"])
def test_restores_at_every_step(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule_of: Callable[..., Lockstep],
    mixed: Mixed,
    policy: str,
):
    schedule = mixed
    if policy == "lockstep":
        schedule = schedule_of(num_replicas=NUM_REPLICAS, accumulate=3)
    assert schedule.epoch(NUM_FEW_STEPS) > 2
    replicas = [1, 3, 2]
    counts = [
        int(schedule.step_counts(step)[replicas].sum()) for step in range(NUM_FEW_STEPS)
    ]
    assert all(counts)
    loader = load(
        debug_config,
        debug_manifest,
        schedule,
        replicas=replicas,
        num_at_once=2,
        num_steps=NUM_FEW_STEPS,
    )
    assert_equal_output_after_checkpoint(WholeSteps(loader, counts))


def test_the_state_is_a_few_bytes(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
):
    readers = Readers(debug_config, debug_manifest, schedule, num_hosts=2)
    readers.read(7)
    assert readers.state() == '{"step": 7}'


def test_the_state_is_the_first_step_that_is_not_wholly_read(
    debug_config: Config, debug_manifest: Manifest, mixed: Mixed
):
    batches = iter(load(debug_config, debug_manifest, mixed, num_at_once=2))
    assert batches.get_state() == {"step": 0}
    for step in range(8):
        count = int(mixed.step_counts(step).sum())
        for i in range(count):
            assert next(batches).step == step
            assert batches.get_state() == {"step": step + (i == count - 1)}


def test_the_state_is_that_of_the_consumer_when_more_is_read_ahead(
    debug_config: Config, debug_manifest: Manifest, mixed: Mixed
):
    """Adds a second prefetch, like a run's transfer of micro-batches to devices."""
    loader = load(debug_config, debug_manifest, mixed)
    batches = iter(
        grain.experimental.ThreadPrefetchIterDataset(loader, prefetch_buffer_size=40)
    )
    for step in range(4):
        for _ in range(int(mixed.step_counts(step).sum())):
            assert batches.get_state() == {"step": step}
            next(batches)
    batches.close()


def test_a_second_resume_and_an_epochs_end(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule: Lockstep,
    unbroken: list[HostBatch],
):
    ends = [s for s in range(1, NUM_STEPS) if schedule.epoch(s) % 1 == 0]
    assert ends
    stops = [0, 3, ends[0], ends[0] + 1, NUM_STEPS]
    state, found = '{"step": 0}', []
    for start, stop in itertools.pairwise(stops):
        readers = Readers(debug_config, debug_manifest, schedule).restore(state)
        found += readers.read(stop - start)
        state = readers.state()
    assert_same(found, unbroken)


def test_the_end_may_be_restored(
    debug_config: Config, debug_manifest: Manifest, schedule: Lockstep
):
    batches = iter(load(debug_config, debug_manifest, schedule))
    batches.set_state({"step": NUM_STEPS})
    with pytest.raises(StopIteration):
        next(batches)
    assert batches.get_state() == {"step": NUM_STEPS}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lockstep", "mixed"])
def test_other_workers_and_other_hosts_read_the_same(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule: Lockstep,
    schedule_of: Callable[..., Mixed],
    policy: str,
):
    """Reads with 2, 1, 4 and 1 hosts, and 1, 2, 0 and 3 worker processes."""
    followed = schedule
    if policy == "mixed":
        followed = schedule_of(num_replicas=NUM_REPLICAS, policy="mixed")
    sizes = [(2, 1), (1, 2), (4, 0), (1, 3)]
    state, found = '{"step": 0}', []
    for num_hosts, num_workers in sizes:
        readers = Readers(
            debug_config,
            debug_manifest,
            followed,
            num_hosts=num_hosts,
            num_workers=num_workers,
        ).restore(state)
        found += readers.read(NUM_STEPS // len(sizes))
        state = readers.state()
        readers.close()
    assert_same(found, read_unbroken(debug_config, debug_manifest, followed))


@pytest.mark.parametrize(
    ("num_workers", "num_groups"),
    [
        (0, 1),
        (0, 2),
        (0, 3),
        pytest.param(1, 2, marks=pytest.mark.slow),
        pytest.param(2, 1, marks=pytest.mark.slow),
    ],
)
def test_mixed_micro_batches_are_those_that_the_schedule_names(
    debug_config: Config,
    debug_manifest: Manifest,
    mixed: Mixed,
    num_workers: int,
    num_groups: int,
):
    batches = iter(
        load(
            debug_config,
            debug_manifest,
            mixed,
            num_at_once=num_groups,
            num_workers=num_workers,
        )
    )
    expected = read_one_by_one(
        debug_manifest,
        mixed,
        num_groups=num_groups,
        num_steps=NUM_STEPS,
        num_text_tokens=debug_config.model.num_text_tokens,
    )
    assert_same(batches, expected)
    batches.close()


def test_a_step_without_micro_batches_is_passed_over(
    debug_config: Config, debug_manifest: Manifest, mixed: Mixed
):
    counts = np.array([mixed.step_counts(step).sum(axis=1) for step in range(8)])
    empty = np.argwhere(counts == 0).tolist()
    ((step, replica), *_) = [pair for pair in empty if 0 < pair[0] < 7]
    batches = iter(
        load(debug_config, debug_manifest, mixed, replicas=[replica], num_at_once=1)
    )
    found = [next(batches) for _ in range(counts[:, replica].sum())]
    steps = np.arange(8).repeat(counts[:, replica])
    assert [batch.step for batch in found] == steps.tolist()
    # The step itself may be restored, and so may the one after it.
    for restored in (step, step + 1):
        batches.set_state({"step": restored})
        assert batches.get_state() == {"step": restored}
        again = [next(batches) for _ in range(counts[step:, replica].sum())]
        assert_same(again, found[counts[:step, replica].sum() :])
    batches.close()


class CountedRecords:
    """Records that count reads, by any process, in a file."""

    def __init__(self, manifest: Manifest, path: Path):
        self._records = open_records(manifest)
        self._path = path

    def __getitem__(self, row: int) -> bytes:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b".")
        os.close(file)
        return self._records[row]


@pytest.fixture(scope="module")
def small_samples(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Four hundred samples of one shape."""
    directory = tmp_path_factory.mktemp("small") / "set"
    shape = Shape(1, 2, 2)
    record = encode_record(Record(tokens=np.zeros((1, 64)), text=np.zeros((3, 8))))
    entries = [
        Entry(id=str(i), source="", caption="", text_tokens=3, shape=shape)
        for i in range(400)
    ]
    write_dataset(directory, [(entry, record) for entry in entries])
    return read_manifest(directory)


def read_ahead(
    config: Config,
    manifest: Manifest,
    schedule: Schedule,
    counter: Path,
    *,
    num_steps: int,
    num_workers: int,
) -> list[int]:
    """Returns the numbers of micro-batches prefetched beyond the consumed ones."""
    batches = iter(
        load(
            config,
            manifest,
            schedule,
            replicas=[0],
            num_at_once=1,
            num_steps=num_steps,
            num_workers=num_workers,
        )
    )
    ahead = []
    for consumed in range(1, 41):
        next(batches)
        if consumed > 30:
            ahead.append(settled_size(counter) - consumed)
    batches.close()
    return ahead


def settled_size(path: Path) -> int:
    """Waits until a file stops growing; returns its size."""
    size, since = path.stat().st_size, time.perf_counter()
    while time.perf_counter() - since < 0.2:
        time.sleep(0.01)
        if path.stat().st_size != size:
            size, since = path.stat().st_size, time.perf_counter()
    return size


@pytest.mark.parametrize(
    ("num_workers", "policy"),
    [
        (0, "lockstep"),
        (0, "mixed"),
        pytest.param(1, "lockstep", marks=pytest.mark.slow),
    ],
)
def test_what_is_read_ahead_does_not_grow_with_accumulation(
    debug_config: Config,
    small_samples: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    policy: str,
):
    (shape,) = small_samples.rows_by_shape
    bucket = make_bucket(shape, batch=1, num_samples=len(small_samples))
    found = {}
    for accumulate in (1, 16):
        schedule: Schedule = Lockstep(
            buckets=(bucket,), seed=0, num_replicas=1, accumulate=accumulate
        )
        if policy == "mixed":
            patterns = [
                Pattern(counts=(n * accumulate,), times=400 // (5 * accumulate))
                for n in (1, 4)
            ]
            schedule = Mixed(
                buckets=(bucket,),
                patterns=tuple(patterns),
                rest=(),
                seed=0,
                num_replicas=1,
            )
        counter = tmp_path / str(accumulate)
        monkeypatch.setattr(
            source_module,
            "open_records",
            lambda manifest, counter=counter: CountedRecords(manifest, counter),
        )
        found[accumulate] = read_ahead(
            debug_config,
            small_samples,
            schedule,
            counter,
            num_steps=160 // accumulate,
            num_workers=num_workers,
        )
    num_prefetch = debug_config.data.num_prefetch
    most = num_prefetch
    if num_workers:
        # The worker's threads and two queues, and one on its way into each queue.
        most = 3 * num_prefetch + 2
    if policy == "mixed":
        # Of eight elements, five are not None on the average.
        most = math.ceil(num_prefetch * 8 / 5)
    for ahead in found.values():
        assert num_prefetch <= max(ahead) <= most


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
        readers.read(NUM_STEPS)
    readers.close()


@pytest.mark.slow
def test_large_batches_cross_in_shared_memory(debug_config: Config, tmp_path: Path):
    shape, rng = Shape(2, 60, 104), np.random.default_rng(0)
    records = [
        Record(tokens=rng.standard_normal((shape.tokens, 64)), text=np.ones((i, 64)))
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
    bucket = make_bucket(shape, batch=3, num_samples=6)
    loader = Loader(
        read_manifest(tmp_path / "set"),
        Lockstep(buckets=(bucket,), seed=0, num_replicas=1, accumulate=1),
        dataclasses.replace(debug_config.data, num_workers=2),
        replicas=[0],
        num_at_once=1,
        num_steps=8,
        num_text_tokens=4,
    )
    batches = iter(loader)
    for _ in range(8):
        arrays = next(batches).arrays
        assert isinstance(arrays["tokens"], SharedMemoryArray)
        assert not isinstance(arrays["text"], SharedMemoryArray)
        for row, tokens in zip(arrays["id"].tolist(), arrays["tokens"], strict=True):
            expected = records[row].tokens.astype(tokens.dtype)
            np.testing.assert_array_equal(tokens, expected)
        lengths = (arrays["text"].astype(float).sum(axis=2) > 0).sum(axis=1)
        np.testing.assert_array_equal(lengths, np.minimum(arrays["id"], 4))
    batches.close()


PROGRAM = """
import pickle, sys, time
from pathlib import Path
from jaxload import command

def main():
    reading = iter(pickle.loads(Path(sys.argv[1]).read_bytes()))
    reading.start_prefetch()
    for _ in reading:
        (Path(sys.argv[1]).parent / "read").touch()
        time.sleep(0.05)
    return 0

if __name__ == "__main__":
    command.run("program", main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["import", "reading"])
def test_workers_are_quiet_at_an_interrupt(
    debug_config: Config,
    debug_manifest: Manifest,
    schedule: Lockstep,
    root: Path,
    tmp_path: Path,
    moment: str,
):
    loader = load(
        debug_config, debug_manifest, schedule, num_steps=10_000, num_workers=2
    )
    (tmp_path / "loader").write_bytes(cloudpickle.dumps(loader))
    (tmp_path / "program.py").write_text(PROGRAM)
    process = process_groups.start(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "loader")],
        PYTHONPATH=str(root),
    )
    reached = {
        "import": lambda: process_groups.num_children(process.pid) > 0,
        "reading": (tmp_path / "read").exists,
    }
    process_groups.wait_until(reached[moment])
    assert process_groups.interrupt(process) == (
        130,
        ["program: interrupted; start it again"],
    )
