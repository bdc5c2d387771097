"""Plans a mixture of images and clips for many replicas, as counts and as rows."""

import collections
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.balance.mixed import Mixed
from jaxload.balance.scenario import make_mixed
from jaxload.console import Console
from jaxload.planning.scenarios import SimulationOptions, Workload, read_workload
from jaxload.shapes.config import ShapeRules

NUM_REPLICAS = 1024
SIZES = ("num_frames", "height", "width")

pytestmark = pytest.mark.slow


def read(workload: Path) -> Workload:
    options = SimulationOptions(
        workload=workload,
        model="wan2.1-t2v-14b",
        remat="none",
        costs=None,
        num_replicas=NUM_REPLICAS,
        accumulate=4,
        memory_headroom=2.0,
        policies=("mixed",),
        form="length",
        max_buckets=32,
        num_steps=1,
        seed=0,
        max_bad_share=0.0,
        rules=ShapeRules(),
    )
    return read_workload(options, Console(quiet=True))


@pytest.fixture(scope="module")
def histogram(root: Path) -> Path:
    return root / "benchmarks" / "workloads" / "mix_dev.csv"


@pytest.fixture(scope="module")
def workload(histogram: Path) -> Workload:
    return read(histogram)


@pytest.fixture(scope="module")
def schedule(workload: Workload) -> Mixed:
    return make_mixed(workload.scenario)


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
    histogram: Path, workload: Workload, schedule: Mixed, tmp_path: Path
):
    write_rows(histogram, tmp_path / "rows.parquet")
    found = read(tmp_path / "rows.parquet")
    assert found.samples.cover == workload.samples.cover
    assert found.chosen == workload.chosen
    assert make_mixed(found.scenario) == schedule


def test_each_sample_is_left_out_or_in_every_epoch(
    histogram: Path, workload: Workload, schedule: Mixed
):
    classes = workload.chosen.classes
    left_out = sum(out.count for out in workload.chosen.left_out)
    num_samples = sum(samples.num_samples for samples in classes)
    assert num_samples + left_out == counts(histogram)[-1].sum()

    size = sum(p.times for p in (*schedule.patterns, *schedule.rest))
    found, step = collections.Counter(), 0
    while step * NUM_REPLICAS < size:
        run = schedule.step_counts(step)[: size - step * NUM_REPLICAS].sum(axis=0)
        for bucket, count in zip(schedule.buckets, run, strict=True):
            found[bucket.form] += int(count) * bucket.batch
        step += 1
    carried = schedule.carried(0)
    for samples in classes:
        form, count = samples.form, samples.num_samples
        assert found[form] + carried[str(form)] == count
