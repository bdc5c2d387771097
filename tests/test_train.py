"""Tests of `python -m jaxload.train`, as a user runs it."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload.data.manifest import Manifest
from jaxload.training.telemetry import StepMetrics, read_metrics

NUM_STEPS = 24


def command(*args: str, data: Path, workdir: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "jaxload.train",
        "--config",
        str(Path(__file__).parents[1] / "configs" / "debug.py"),
        "--workdir",
        str(workdir),
        "--set",
        f"data.path={data}",
        "--set",
        f"train.num_steps={NUM_STEPS}",
        *args,
    ]


def run(*args: str, data: Path, workdir: Path, **env: str):
    return subprocess.run(
        command(*args, data=data, workdir=workdir),
        capture_output=True,
        text=True,
        env=os.environ | env,
        check=False,
    )


def losses(workdir: Path) -> list[tuple[int, float, str]]:
    return [(r.step, r.loss, r.bucket) for r in read_metrics(workdir / "metrics.jsonl")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data") / "debug"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path):
    """An unbroken run with its output, and the compiles logged into it."""
    workdir = tmp_path_factory.mktemp("runs") / "unbroken"
    result = run(
        "--set", "train.log_every=1", data=data, workdir=workdir, JAX_LOG_COMPILES="1"
    )
    assert result.returncode == 0, result.stderr
    return workdir, result


@pytest.mark.slow
def test_writes_what_it_promises(finished):
    workdir, result = finished
    config = json.loads((workdir / "config.json").read_text())
    assert config["train"]["num_steps"] == NUM_STEPS
    plan = json.loads((workdir / "plan.json").read_text())
    assert len(plan["buckets"]) == 3
    rows = read_metrics(workdir / "metrics.jsonl")
    assert [row.step for row in rows] == list(range(NUM_STEPS))
    assert {row.bucket for row in rows} == {b["shape"] for b in plan["buckets"]}
    assert all(row.seconds > 0 and row.data_wait_seconds >= 0 for row in rows)
    assert (workdir / "checkpoints" / str(NUM_STEPS)).is_dir()
    with Image.open(workdir / "sample.gif") as sample:
        assert sample.size == (32 * 4, 32 * 4)
        assert getattr(sample, "n_frames", 1) > 1
    with Image.open(workdir / "training.png") as figure:
        assert figure.width > 800
    for name in ("config.json", "plan.json", "metrics.jsonl", "sample.gif"):
        assert str(workdir / name) in result.stdout
    assert "next: " in result.stdout


@pytest.mark.slow
def test_prints_the_catalogue_and_a_line_a_step(finished):
    _, result = finished
    assert "Catalogue for 1 replica(s)" in result.stdout
    assert "kept 48 samples, dropped 0" in result.stdout
    assert "compiling: 6/6" in result.stdout
    steps = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert len(steps) == NUM_STEPS
    for part in ("loss", "lr", "grad", "s/step", "tokens/s", "left"):
        assert part in steps[-1]


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_step(finished, data: Path, tmp_path: Path):
    # The two streams as one, so that JAX's own log says when something was compiled.
    lines = subprocess.run(
        command("--set", "train.log_every=1", data=data, workdir=tmp_path / "run"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_LOG_COMPILES": "1", "PYTHONUNBUFFERED": "1"},
        check=True,
    ).stdout.splitlines()
    first_step = next(i for i, line in enumerate(lines) if line.startswith("step 1/"))
    compiled = ["Compiling " in line or "compilation" in line for line in lines]
    assert sum(compiled[:first_step]) >= 6, "the log does not show compiles"
    assert not any(compiled[first_step:]), lines[first_step:]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_losses(finished, data: Path, tmp_path: Path):
    workdir, _ = finished
    again = tmp_path / "again"
    assert run(data=data, workdir=again).returncode == 0
    assert losses(again) == losses(workdir)
    other = tmp_path / "other"
    assert run("--set", "train.seed=1", data=data, workdir=other).returncode == 0
    assert losses(other) != losses(workdir)


def kill_in_mid_run(process: subprocess.Popen, metrics: Path, num_rows: int) -> None:
    for _ in itertools.count():
        assert process.poll() is None, "the run ended before it could be killed"
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= num_rows:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_killed_and_resumed_gives_the_losses_of_an_unbroken_run(
    finished, data: Path, tmp_path: Path
):
    unbroken, _ = finished
    workdir = tmp_path / "killed"
    with subprocess.Popen(
        command(data=data, workdir=workdir),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        kill_in_mid_run(process, workdir / "metrics.jsonl", num_rows=8)
    assert 8 <= len(losses(workdir)) < NUM_STEPS
    assert run(data=data, workdir=workdir).returncode == 2, (
        "resumed without being asked"
    )
    result = run("--resume", data=data, workdir=workdir)
    assert result.returncode == 0, result.stderr
    assert "resuming at step" in result.stdout
    assert losses(workdir) == losses(unbroken)


@pytest.mark.slow
def test_a_second_resume_goes_further(finished, data: Path, tmp_path: Path):
    unbroken, _ = finished
    workdir = tmp_path / "twice"
    for num_steps in (5, 11, NUM_STEPS):
        steps = ("--set", f"train.num_steps={num_steps}")
        result = run("--resume", *steps, data=data, workdir=workdir)
        assert result.returncode == 0, result.stderr
        assert len(losses(workdir)) == num_steps
    assert losses(workdir) == losses(unbroken)


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(finished, data: Path):
    workdir, _ = finished
    before = (workdir / "metrics.jsonl").stat().st_mtime_ns
    result = run("--set", "train.log_every=1", data=data, workdir=workdir)
    assert result.returncode == 0
    assert "already holds this run, finished" in result.stdout
    assert (workdir / "metrics.jsonl").stat().st_mtime_ns == before


def mean_prediction_loss(manifest: Manifest, rows: list[StepMetrics]) -> float:
    """The loss of predicting the mean velocity, for the shapes that were trained on."""
    import grain

    from jaxload.data.record import decode_record

    records = grain.sources.ArrayRecordDataSource(manifest.shard_paths())
    by_shape = {str(s): r for s, r in manifest.rows_by_shape().items()}
    spread = {}
    for shape, members in by_shape.items():
        latents = np.stack(
            [decode_record(records[int(row)]).latent for row in members]
        ).astype(np.float64)
        spread[shape] = np.square(latents - latents.mean(axis=0)).mean()
    # Noise has variance 1 and is independent of the sample.
    return float(np.mean([1.0 + spread[row.bucket] for row in rows]))


@pytest.mark.slow
def test_the_loss_falls_below_that_of_predicting_the_mean(
    finished, data: Path, tmp_path: Path
):
    from jaxload.data.manifest import read_manifest

    workdir = tmp_path / "longer"
    result = run(
        *("--set", "train.num_steps=60", "--set", "optimizer.learning_rate=5e-3"),
        *("--set", "model.width=64", "--set", "model.mlp_width=256"),
        *("--set", "balance.max_tokens=512", "--set", "balance.max_compute_tokens=512"),
        data=data,
        workdir=workdir,
    )
    assert result.returncode == 0, result.stderr
    last = read_metrics(workdir / "metrics.jsonl")[-20:]
    trained = np.mean([row.loss for row in last])
    baseline = mean_prediction_loss(read_manifest(data), last)
    print(f"trained {trained:.3f}, predicting the mean {baseline:.3f}")
    assert trained < 0.85 * baseline


def error_line(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("jaxload.train: ")
    return line


def test_a_misspelt_field_is_one_line(data: Path, tmp_path: Path):
    result = run("--set", "train.num_step=3", data=data, workdir=tmp_path / "run")
    assert "did you mean 'num_steps'?" in error_line(result)
    assert not (tmp_path / "run").exists()


def test_a_config_that_does_not_exist_is_one_line(data: Path, tmp_path: Path):
    result = run("--config", "configs/none.py", data=data, workdir=tmp_path / "run")
    assert "config configs/none.py: no such file" in error_line(result)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_truncated_shard_is_one_line(finished, data: Path, tmp_path: Path):
    import shutil

    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    shard = next(copy.glob("*.array_record"))
    shard.write_bytes(shard.read_bytes()[:-1])
    result = run(data=copy, workdir=tmp_path / "run")
    assert "the shard is truncated" in error_line(result)


def test_help_lists_every_field():
    result = subprocess.run(
        [sys.executable, "-m", "jaxload.train", "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "160"},
        check=True,
    )
    assert "--resume" in result.stdout
    assert "balance.max_tokens" in result.stdout
    assert "Optimizer updates of the whole run" in result.stdout
