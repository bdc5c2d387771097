"""Tests of benchmarks.planning and its workloads, without timing."""

import collections
import csv
import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks import one_core, planning, scaled_workload
from benchmarks.planning import Planned, Row
from benchmarks.scaled_workload import write_histogram, write_rows

NUM_SAMPLES = 200_000


def read_counts(path: Path) -> dict[tuple[int, ...], int]:
    with path.open() as file:
        rows = [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]
    return {row[:-1]: row[-1] for row in rows}


@pytest.fixture(scope="module")
def histogram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planning") / "histogram.csv"
    write_histogram(path, NUM_SAMPLES)
    return path


@pytest.fixture(scope="module")
def planned(histogram: Path) -> Planned:
    return planning.plan(histogram)


def test_a_histogram_is_the_source_times_a_whole_number(tmp_path: Path):
    source = read_counts(scaled_workload.SOURCE)
    for num_samples, factor in ((1, 1), (84_310, 1), (84_311, 2), (10**10, 118_610)):
        total = write_histogram(tmp_path / "h.csv", num_samples)
        counts = read_counts(tmp_path / "h.csv")
        assert counts == {kind: factor * n for kind, n in source.items()}
        assert total == sum(counts.values()) >= num_samples


def test_rows_are_those_of_the_histogram_in_another_order(
    histogram: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(scaled_workload, "_CHUNK_ROWS", 100_000)
    num_bytes = write_rows(histogram, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    columns = [table[n].to_pylist() for n in ("num_frames", "height", "width")]
    rows = list(zip(*columns, strict=True))
    assert collections.Counter(rows) == read_counts(histogram)
    # The kinds that are frequent are in every part.
    assert len(set(rows[:1_000])) > 200
    assert table["id"].to_pylist() == [str(i) for i in range(len(rows))]
    is_image = np.array(columns[0]) == 1
    assert (table["fps"].to_numpy() == np.where(is_image, 0.0, 16.0)).all()
    assert num_bytes < len(rows) * scaled_workload.BYTES_PER_ROW


def test_a_child_has_one_core_and_the_parent_keeps_its_own():
    before = os.sched_getaffinity(0)
    cores, peak_bytes = one_core.run(os.sched_getaffinity, 0)
    assert len(cores) == 1
    assert one_core.run(pa.cpu_count)[0] == 1
    assert os.sched_getaffinity(0) == before
    assert peak_bytes > 10e6


def test_the_memory_of_a_child_is_its_own():
    much = np.ones(60_000_000)
    _, without = one_core.run(os.getpid)
    _, with_more = one_core.run(np.ones, 20_000_000)
    assert without < 200e6 < much.nbytes
    assert with_more > without + 160e6


def test_a_child_that_fails_fails_the_benchmark():
    before = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError):
        one_core.run(divmod, 1, 0)
    assert os.sched_getaffinity(0) == before


def row(**changes) -> Row:
    return dataclasses.replace(
        Row(name="a row", note="a note", seconds=59.0, peak_bytes=10**9), **changes
    )


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, False),
        ({"seconds": 61.0}, True),
        ({"peak_bytes": 2_100_000_000}, True),
        ({"seconds": 0.051, "max_seconds": 0.05}, True),
        ({"seconds": float("nan"), "peak_bytes": 0}, False),
    ],
    ids=["within", "slow", "large", "slow-look-up", "left-out"],
)
def test_a_missed_limit_is_marked_and_ends_with_1(
    changes: dict, missed: bool, monkeypatch, capsys
):
    rows = [row(), row(**changes)]
    monkeypatch.setattr(planning, "measure", lambda *args: rows)
    assert planning.main(["--rows", "5000"]) == int(missed)
    assert capsys.readouterr().out.count("MISSED") == int(missed)


def test_too_few_rows_are_refused(capsys):
    with pytest.raises(SystemExit):
        planning.main(["--rows", "1023"])
    assert "--rows 1023: expected 1024 or more" in capsys.readouterr().err


@pytest.mark.slow
def test_a_disk_without_room_is_told(histogram: Path, planned: Planned, monkeypatch):
    usage = shutil.disk_usage(histogram.parent)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    left_out = planning._measure_parquet(histogram, 10**9, planned, lambda text: None)
    assert "left out: 1.0 GB free in" in left_out.note
    assert not left_out.missed
    planning.print_table([left_out], Console(quiet=True))


@pytest.mark.slow
def test_an_epoch_of_the_schedule_has_every_sample(histogram: Path, planned: Planned):
    planning.check(planned, sum(read_counts(histogram).values()))
    schedule = planned.schedule
    size, found, step = planning.epoch_size(schedule), collections.Counter(), 0
    while step * schedule.num_replicas < size:
        counts = schedule.step_counts(step)[: size - step * schedule.num_replicas]
        for bucket, count in zip(schedule.buckets, counts.sum(axis=0), strict=True):
            found[bucket.shape] += int(count) * bucket.batch
        step += 1
    carried = schedule.carried(0)
    for shape, count in zip(
        planned.cover.shapes, planned.cover.num_samples, strict=True
    ):
        assert found[shape] + carried[str(shape)] == count


@pytest.mark.slow
def test_a_schedule_that_does_not_add_up_is_found(histogram: Path, planned: Planned):
    num_samples = sum(read_counts(histogram).values())
    with pytest.raises(AssertionError):
        planning.check(planned, num_samples + 1)
    first, *patterns = planned.schedule.patterns
    for times in (0, first.times - 1, first.times + 1):
        changed = (dataclasses.replace(first, times=times), *patterns)
        schedule = dataclasses.replace(planned.schedule, patterns=changed)
        with pytest.raises(AssertionError):
            planning.check(dataclasses.replace(planned, schedule=schedule), num_samples)


@pytest.mark.slow
def test_all_rows_end_to_end(tmp_path: Path):
    said = []
    rows = planning.measure(NUM_SAMPLES, 10**10, tmp_path, said.append)
    assert [row.name for row in rows] == [
        "histogram of 252,930",
        "Parquet of 252,930",
        "look-up among 10,000,009,100",
    ]
    for row in rows:
        assert row.seconds > 0
        assert row.peak_bytes > 50e6
    assert [row.max_seconds for row in rows] == [60.0, 60.0, 0.05]
    assert "32 shapes" in rows[0].note
    assert "; file 0.00 GB" in rows[1].note
    assert "median of 50 steps" in rows[2].note
    assert len(said) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["histogram.csv"]
