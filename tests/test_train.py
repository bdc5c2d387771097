"""Tests of `python -m jaxload.train`, as a user runs it."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload import config as config_lib
from jaxload import plan as plan_command
from jaxload import train as train_command
from jaxload.balance.form import Length
from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.ops import _ffi
from jaxload.runs.workdir import WorkDir
from jaxload.training.events import STEP, Event, read_events
from tests.data.datasets import write_as_one_shard
from tests.training.damage import flip

DEBUG = Path(__file__).parents[1] / "configs" / "debug.py"
NUM_STEPS = 24


def command(*args: str, data: Path, workdir: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "jaxload.train",
        "--config",
        str(DEBUG),
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
    return [
        (event.step, event.values["loss"], event.values["bucket"])
        for event in read_events(workdir / "metrics.jsonl", STEP)
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data") / "debug"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path):
    """Trains without interruption; returns the workdir and the output."""
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
    rows = read_events(workdir / "metrics.jsonl", STEP)
    assert [row.step for row in rows] == list(range(1, NUM_STEPS + 1))
    assert {row.values["bucket"] for row in rows} == {
        bucket["program"]["form"] for bucket in plan["buckets"]
    }
    assert all(
        row.values["seconds"] > 0 and row.values["data_wait_seconds"] >= 0
        for row in rows
    )
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
    assert "kept 48 samples" in result.stdout
    assert "left out 0" in result.stdout
    assert "compiling: 6/6" in result.stdout
    steps = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert len(steps) == NUM_STEPS
    for part in ("loss", "lr", "grad", "s/step", "tokens/s", "left"):
        assert part in steps[-1]


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_step(finished, data: Path, tmp_path: Path):
    # Both streams in one, so that JAX's log shows when programs were compiled.
    lines = subprocess.run(
        command("--set", "train.log_every=1", data=data, workdir=tmp_path / "run"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_LOG_COMPILES": "1", "PYTHONUNBUFFERED": "1"},
        check=True,
    ).stdout.splitlines()
    # No compilation after the ahead-of-time phase, which ends before step 1.
    ready = next(
        i for i, line in enumerate(lines) if line.startswith("compiling: 6/6 in")
    )
    compiled = ["Compiling " in line or "compilation" in line for line in lines]
    assert sum(compiled[:ready]) >= 6, "the log does not show compiles"
    assert not any(compiled[ready:]), lines[ready:]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_losses(finished, data: Path, tmp_path: Path):
    workdir, _ = finished
    again = tmp_path / "again"
    assert run(data=data, workdir=again).returncode == 0
    assert losses(again) == losses(workdir)
    other = tmp_path / "other"
    assert run("--set", "train.seed=1", data=data, workdir=other).returncode == 0
    assert losses(other) != losses(workdir)


WITHOUT_KERNELS = """
import sys
sys.modules["jaxload._ffi"] = None  # As if it had not been built.
from jaxload import train
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_kernels_give_the_losses_of_the_plain_forms(
    finished, data: Path, tmp_path: Path
):
    _, _, _, *args = command(data=data, workdir=tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERNELS, *args],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "jaxload._ffi was not built" in result.stderr
    with_kernels, plain = (
        np.array(
            [row.values["loss"] for row in read_events(workdir / "metrics.jsonl", STEP)]
        )
        for workdir in (finished[0], tmp_path)
    )
    # Four times the largest measured difference. On some processors all bits are equal,
    # so that kernels ran is shown by the extension being there for the other run.
    assert "cpu" in _ffi.platforms()
    np.testing.assert_allclose(with_kernels, plain, rtol=4e-7)


def kill_in_mid_run(process: subprocess.Popen, metrics: Path, num_rows: int) -> None:
    for _ in itertools.count():
        assert process.poll() is None, "the run ended before it could be killed"
        # The first line is the format.
        if metrics.exists() and metrics.read_bytes().count(b"\n") > num_rows:
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
    for resume, num_steps in (((), 5), (("--resume",), 11), (("--resume",), NUM_STEPS)):
        steps = ("--set", f"train.num_steps={num_steps}")
        result = run(*resume, *steps, data=data, workdir=workdir)
        assert result.returncode == 0, result.stderr
        assert len(losses(workdir)) == num_steps
    assert losses(workdir) == losses(unbroken)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_continues(
    finished, data: Path, tmp_path: Path
):
    unbroken, _ = finished
    workdir, every = tmp_path / "run", ("--set", "train.checkpoint_every=4")
    first = run(*every, "--set", "train.num_steps=8", data=data, workdir=workdir)
    assert first.returncode == 0, first.stderr
    array = max((workdir / "checkpoints" / "8").rglob("d/*"), key=lambda p: p.name)
    flip(array, bit=333)
    result = run(*every, "--resume", data=data, workdir=workdir)
    assert result.returncode == 0, result.stderr
    assert re.search(rf"^{array}: expected .*; trying the .* 4$", result.stdout, re.M)
    assert "resuming at step 4" in result.stdout
    assert losses(workdir) == losses(unbroken)
    names = {path.name for path in (workdir / "checkpoints").iterdir()}
    assert names == {"20", str(NUM_STEPS), "8.damaged"}


DISK_FULL_AT_STEP_8 = """
import resource, sys
from jaxload import command, train
from jaxload.training.checkpoint import Checkpoints

save = Checkpoints.save
def save_with_little_room(self, step, *args):
    if step == 8:  # Enough for metrics, but not for arrays.
        self._finish()
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    save(self, step, *args)

Checkpoints.save = save_with_little_room
command.run("jaxload.train", train.main)
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_no_checkpoint(
    finished, data: Path, tmp_path: Path
):
    workdir, every = tmp_path / "run", ("--set", "train.checkpoint_every=4")
    _, _, _, *args = command(*every, data=data, workdir=workdir)
    result = subprocess.run(
        [sys.executable, "-c", DISK_FULL_AT_STEP_8, *args],
        capture_output=True,
        text=True,
        check=False,
    )
    line = error_line(result)
    assert f"{workdir / 'checkpoints' / '8'}: cannot be written (File too la" in line
    again = run(*every, "--resume", data=data, workdir=workdir)
    assert again.returncode == 0, again.stderr
    assert "resuming at step 4" in again.stdout
    assert losses(workdir) == losses(finished[0])


@pytest.mark.slow
def test_a_budget_of_bytes_is_kept(data: Path, tmp_path: Path):
    budget = 1_300_000
    options = ("--set", f"balance.max_bytes={budget}", "--set", "train.num_steps=1")
    result = run(*options, data=data, workdir=tmp_path / "run")
    assert result.returncode == 0, result.stderr
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert "memory_analysis()" in plan["sources"]["memory"]
    assert all(0 < bucket["num_bytes"] <= budget for bucket in plan["buckets"])
    options = ("--set", "balance.max_bytes=1")
    result = run(*options, data=data, workdir=tmp_path / "none")
    assert "balance.max_bytes=1: the program 'update' needs" in error_line(result)
    assert not (tmp_path / "none" / "config.json").exists()


@pytest.mark.slow
def test_worker_processes_give_the_same_losses(finished, data: Path, tmp_path: Path):
    """Two processes read up to a checkpoint, and threads after it."""
    workdir, stop = tmp_path / "run", "train.num_steps=3"
    workers = ("--set", "data.num_workers=2")
    first = run(*workers, "--set", stop, data=data, workdir=workdir)
    assert first.returncode == 0, first.stderr
    rest = run("--resume", data=data, workdir=workdir)
    assert rest.returncode == 0, rest.stderr
    assert losses(workdir) == losses(finished[0])


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(finished, data: Path):
    workdir, _ = finished
    before = (workdir / "metrics.jsonl").stat().st_mtime_ns
    result = run("--set", "train.log_every=1", data=data, workdir=workdir)
    assert result.returncode == 0
    assert "already holds this run, which is finished" in result.stdout
    assert (workdir / "metrics.jsonl").stat().st_mtime_ns == before


def mean_prediction_loss(manifest: Manifest, rows: list[Event]) -> float:
    """Returns the loss of predicting the mean velocity, over the trained lengths."""
    records = open_records(manifest)
    # Each shape of the debug dataset has a length of its own.
    by_form = {str(Length(s.tokens)): r for s, r in manifest.rows_by_shape.items()}
    assert len(by_form) == len(manifest.rows_by_shape)
    spread = {}
    for form, members in by_form.items():
        tokens = np.stack(
            [decode_record(records[int(row)]).tokens for row in members]
        ).astype(np.float64)
        spread[form] = np.square(tokens - tokens.mean(axis=0)).mean()
    # Noise has variance 1 and is independent of the sample.
    return float(np.mean([1.0 + spread[row.values["bucket"]] for row in rows]))


@pytest.mark.slow
def test_the_loss_falls_below_that_of_predicting_the_mean(
    finished, data: Path, tmp_path: Path
):
    workdir = tmp_path / "longer"
    result = run(
        *("--set", "train.num_steps=60", "--set", "optimizer.learning_rate=5e-3"),
        *("--set", "model.width=64", "--set", "model.mlp_width=256"),
        *("--set", "balance.max_tokens=512", "--set", "balance.max_compute_tokens=512"),
        data=data,
        workdir=workdir,
    )
    assert result.returncode == 0, result.stderr
    last = read_events(workdir / "metrics.jsonl", STEP)[-20:]
    trained = np.mean([row.values["loss"] for row in last])
    baseline = mean_prediction_loss(read_manifest(data), last)
    print(f"trained {trained:.3f}, predicting the mean {baseline:.3f}")
    assert trained < 0.85 * baseline


@pytest.mark.slow
def test_a_record_damaged_in_mid_run_is_one_line_and_loses_no_checkpoint(
    tmp_path: Path,
):
    drawn, data, workdir = tmp_path / "drawn", tmp_path / "data", tmp_path / "run"
    more = ("--set", "synthetic.num_samples=250")
    plan = ["--config", str(DEBUG), "--set", f"data.path={drawn}", *more]
    assert plan_command.main(plan) == 0
    write_as_one_shard(read_manifest(drawn), data)
    (shard,) = data.glob("*.array_record")
    content = bytearray(shard.read_bytes())
    content[100_000:101_000] = bytes(1_000)  # Not checked at the start.
    shard.write_bytes(content)
    steps = ("--set", "train.num_steps=300", "--set", "train.checkpoint_every=1")
    result = run(*more, *steps, data=data, workdir=workdir)
    line = error_line(result)
    assert f"{shard}, record " in line
    assert "cannot be read" in line
    done = len(losses(workdir))
    assert done > 0
    assert (workdir / "checkpoints" / str(done)).is_dir()


def error_line(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    # Orbax may warn that checkpoints are frequent.
    lines = [line for line in result.stderr.splitlines() if "WARNING" not in line]
    (line,) = lines
    assert line.startswith("jaxload.train: ")
    return line


def truncate_shard(data: Path) -> None:
    shard = next(data.glob("*.array_record"))
    shard.write_bytes(shard.read_bytes()[:-1])


def zero_shard(data: Path) -> None:
    shard = next(data.glob("*.array_record"))
    shard.write_bytes(bytes(shard.stat().st_size))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate_shard, "the shard is truncated"),
        (zero_shard, "another file, or damaged"),
    ],
)
def test_a_damaged_dataset_is_one_line(tmp_path: Path, damage, message):
    data = tmp_path / "data"
    plan = ["--config", str(DEBUG), "--set", f"data.path={data}"]
    assert plan_command.main(plan) == 0
    damage(data)
    result = run(data=data, workdir=tmp_path / "run")
    assert message in error_line(result)
    assert not (tmp_path / "run" / "config.json").exists()


def write_nothing(workdir: Path) -> None:
    del workdir


def write_other_run(workdir: Path) -> None:
    config = config_lib.override(config_lib.load(DEBUG), "model.depth=1")
    workdir.mkdir()
    WorkDir(workdir).begin(config)


def write_a_file(workdir: Path) -> None:
    workdir.write_text("a file where the directory should be")


def write_something_else(workdir: Path) -> None:
    workdir.mkdir()
    (workdir / "thesis.tex").write_text("do not touch")


@pytest.mark.parametrize(
    ("args", "prepare", "message"),
    [
        (("--set", "train.num_step=3"), write_nothing, "did you mean 'num_steps'?"),
        (("--config", "configs/none.py"), write_nothing, "configs/none.py: no such"),
        ((), write_other_run, "different run: model.depth is 1 there and 2 here"),
        ((), write_a_file, "cannot be written (File exists)"),
        ((), write_something_else, "is not empty and holds no run"),
    ],
    ids=["field", "config", "other-run", "unwritable", "not-a-run"],
)
def test_bad_input_is_one_line(data: Path, tmp_path: Path, args, prepare, message):
    workdir = tmp_path / "run"
    prepare(workdir)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    result = run(*args, data=data, workdir=workdir)
    assert message in error_line(result)
    after = {p: p.read_bytes() for p in before}
    assert after == before, "something was overwritten"


@pytest.mark.slow
def test_resume_needs_no_config_but_the_runs_own(finished, tmp_path: Path):
    workdir, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(workdir, copy)
    steps = f"train.num_steps={NUM_STEPS + 2}"
    arguments = ["--workdir", str(copy), "--resume", "--set", steps]
    result = subprocess.run(
        [sys.executable, "-m", "jaxload.train", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert losses(copy)[:NUM_STEPS] == losses(workdir)
    assert len(losses(copy)) == NUM_STEPS + 2


def test_no_argument_is_the_demo_into_runs_demo(monkeypatch: pytest.MonkeyPatch):
    seen = []

    @contextlib.contextmanager
    def refuse(path, config, *, resume):
        seen.append((path, config, resume))
        raise InputError("stop here")
        yield

    monkeypatch.setattr("jaxload.train.claim_workdir", refuse)
    with pytest.raises(InputError, match="stop here"):
        train_command.main([])
    demo = config_lib.load(DEBUG.with_name("demo.py"))
    assert seen == [(Path("runs/demo"), demo, False)]


def test_help_lists_every_field(capsys):
    with pytest.raises(SystemExit) as stop:
        train_command.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--resume" in text
    for row in config_lib.describe(config_lib.load(DEBUG.with_name("demo.py"))):
        assert f"{row.path} ({row.type}) = {row.value}\n        {row.meaning}" in text
