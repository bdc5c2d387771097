"""Plans a mixture of images and clips for many replicas, as counts and as rows."""

import collections
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.balance.mixed import Mixed
from jaxload.balance.scenario import Scenario, make_mixed
from jaxload.console import Console
from jaxload.planning.scenarios import SimulationOptions, read_scenario
from jaxload.shapes.config import ShapeRules

NUM_REPLICAS = 1024
SIZES = ("num_frames", "height", "width")

pytestmark = pytest.mark.slow


def read(workload: Path) -> Scenario:
    options = SimulationOptions(
        workload=workload,
        model="wan2.1-t2v-14b",
        remat="none",
        costs=None,
        num_replicas=NUM_REPLICAS,
        accumulate=4,
        memory_headroom=2.0,
        policies=("mixed",),
        max_buckets=32,
        num_steps=1,
        seed=0,
        max_bad_share=0.0,
        rules=ShapeRules(),
    )
    return read_scenario(options, Console(quiet=True))


@pytest.fixture(scope="module")
def histogram(root: Path) -> Path:
    return root / "benchmarks" / "workloads" / "mix_dev.csv"


@pytest.fixture(scope="module")
def scenario(histogram: Path) -> Scenario:
    return read(histogram)


@pytest.fixture(scope="module")
def schedule(scenario: Scenario) -> Mixed:
    return make_mixed(scenario)


def counts(histogram: Path) -> np.ndarray:
    """Returns the columns of a histogram: frames, height, width and count."""
    return np.loadtxt(histogram, np.int64, delimiter=",", skiprows=1, unpack=True)


def write_rows(histogram: Path, path: Path) -> None:
    """Writes each sample of a histogram as a row of Parquet, shuffled."""
    *sizes, count = counts(histogram)
    entries = np.random.default_rng(0).permutation(np.repeat(range(len(count)), count))
    columns = {name: size[entries] for name, size in zip(SIZES, sizes, strict=True)}
    columns["id"] = np.arange(len(entries)).astype(str)
    columns["fps"] = np.where(sizes[0] > 1, ShapeRules().fps, 0.0)[entries]
    pq.write_table(pa.table(columns), path)


def test_rows_give_the_plan_of_their_histogram(
    histogram: Path, scenario: Scenario, schedule: Mixed, tmp_path: Path
):
    write_rows(histogram, tmp_path / "rows.parquet")
    found = read(tmp_path / "rows.parquet")
    assert found.cover == scenario.cover
    assert make_mixed(found) == schedule


def test_each_sample_is_left_out_or_in_every_epoch(
    histogram: Path, scenario: Scenario, schedule: Mixed
):
    cover = scenario.cover
    left_out = sum(out.count for out in cover.left_out)
    assert sum(cover.num_samples) + left_out == counts(histogram)[-1].sum()

    size = sum(p.times for p in (*schedule.patterns, *schedule.rest))
    found, step = collections.Counter(), 0
    while step * NUM_REPLICAS < size:
        run = schedule.step_counts(step)[: size - step * NUM_REPLICAS].sum(axis=0)
        for bucket, count in zip(schedule.buckets, run, strict=True):
            found[bucket.shape] += int(count) * bucket.batch
        step += 1
    carried = schedule.carried(0)
    for shape, count in zip(cover.shapes, cover.num_samples, strict=True):
        assert found[shape] + carried[str(shape)] == count
