"""Tests of python -m jaxload.prepare with codecs that encode batches."""

import csv
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from jaxload import plan as plan_command
from jaxload import prepare as command
from jaxload.data.manifest import read_manifest
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.media.part_writer import PartWriter
from tests import process_groups
from tests.media.named_memory import named_memory
from tests.process_groups import wait_until
from tests.test_prepare import (
    CONFIG,
    command_line,
    manifest_bytes,
    media,
    num_done,
    prepare,
    prepared,
    shards,
)

__all__ = ["media", "prepared"]  # Fixtures.

CODECS = "tests.media.codecs"
PICTURE = "more/picture 3 \u00e9.png"
BATCHED = ("--codec", f"{CODECS}:Batched")


def ids(out: Path) -> list[str]:
    return read_manifest(out).read_column("id").to_pylist()


@pytest.mark.parametrize(
    "where",
    [
        ["--workers", "0"],
        ["--workers", "1"],
        pytest.param(["--workers", "2", "--encoders", "2"], marks=pytest.mark.slow),
    ],
)
def test_batches_make_the_same_bytes(
    media: Path, prepared: Path, tmp_path: Path, where: list[str]
):
    before = named_memory()
    assert prepare(media, tmp_path / "out", *BATCHED, *where) == 0
    assert shards(tmp_path / "out") == shards(prepared)
    assert ids(tmp_path / "out") == ids(prepared)
    assert named_memory() == before


@pytest.mark.parametrize("workers", ["0", "1"])
def test_captions_are_encoded_in_batches_too(media: Path, tmp_path: Path, workers: str):
    encoder = ("--text-encoder", f"{CODECS}:BatchedLengths", "--workers", workers)
    out = tmp_path / "out"
    assert prepare(media, out, "--set", "model.text_dim=1", *encoder) == 0
    manifest = read_manifest(out)
    captions = manifest.read_column("caption").to_pylist()
    records = open_records(manifest)
    texts = [decode_record(records[i]).text for i in range(len(captions))]
    assert [text.tolist() for text in texts] == [[[len(c)]] for c in captions]


@pytest.mark.parametrize(
    ("codec", "workers", "detail"),
    [
        ("BatchedFailsOnPicture", "0", "RuntimeError: not this one"),
        ("BatchedFailsOnPicture", "1", "RuntimeError: not this one"),
        ("BatchedNotFinite", "0", "numbers that are not finite in bfloat16"),
    ],
)
def test_a_batch_that_fails_costs_only_the_file_that_fails(
    media: Path, prepared: Path, tmp_path: Path, codec: str, workers: str, detail: str
):
    out = tmp_path / "out"
    options = ("--codec", f"{CODECS}:{codec}", "--workers", workers)
    assert prepare(media, out, *options) == 0
    assert ids(out) == [i for i in ids(prepared) if i != PICTURE]
    with (out / "report.csv").open() as file:
        rows = {(row["name"], row["reason"]): row for row in csv.DictReader(file)}
    assert detail in rows[PICTURE, "failed"]["detail"]


def test_a_batch_of_nothing_is_refused(media: Path, tmp_path: Path):
    message = (
        r"codec no batch: batch_size\(.*\) is 0: expected a whole number, at least 1"
    )
    with pytest.raises(InputError, match=message):
        prepare(media, tmp_path / "out", "--codec", f"{CODECS}:NoBatch")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "1", "--encoders", "0"], "--encoders 0: expected 1 or more"),
        (
            [*BATCHED, "--workers", "1", "--encoders", "999"],
            "--encoders 999: expected at most ",
        ),
        (
            [*BATCHED, "--encoders", "2"],
            "--encoders 2: has no effect, because --workers 0 runs everything",
        ),
        (
            ["--workers", "1", "--encoders", "2"],
            "--encoders 2: has no effect, because codec haar and .* no batches",
        ),
        (
            ["--ray", *BATCHED],
            "--workers 0: has no effect with --ray, which starts the processes",
        ),
    ],
)
def test_processes_without_use_are_refused_before_any_work(
    media: Path, tmp_path: Path, options: list[str], message: str
):
    with pytest.raises(InputError, match=message):
        prepare(media, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "plugin",
    [
        ("--codec", f"{CODECS}:Batched"),
        ("--text-encoder", f"{CODECS}:BatchedLengths", "--set", "model.text_dim=1"),
    ],
)
def test_batches_on_ray_are_refused_before_any_work(
    media: Path, tmp_path: Path, plugin: tuple[str, ...]
):
    """Each CPU slot would load a copy of the codec on the same GPUs."""
    out = ("--out", str(tmp_path / "out"))
    with pytest.raises(InputError, match=r"--ray: codec .* encodes batches, and every"):
        command.main(["--media", str(media), *out, "--ray", *plugin])
    assert not (tmp_path / "out").exists()


def test_batch_sizes_for_the_shapes_of_a_plan_are_checked_before_any_work(
    media: Path, prepared: Path, tmp_path: Path
):
    plan = plan_of(prepared, tmp_path)
    with pytest.raises(InputError, match=r"no batch: batch_size\(.*\) is 0: expected"):
        prepare(media, tmp_path / "out", "--plan", plan, "--codec", f"{CODECS}:NoBatch")
    assert not (tmp_path / "out").exists()


def test_shares_with_batches_make_the_same_bytes(
    media: Path, prepared: Path, tmp_path: Path
):
    """A batch has clips of the parts of one share only."""
    plan = ("--plan", plan_of(prepared, tmp_path))
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    assert prepare(media, whole, *plan) == 0
    for share in ("1/2", "0/2"):
        assert not (shared / "manifest.parquet").exists()
        assert prepare(media, shared, *plan, *BATCHED, "--shard", share) == 0
    assert shards(shared) == shards(whole)
    assert ids(shared) == ids(whole)


def plan_of(prepared: Path, directory: Path) -> str:
    """Plans from the scans of a dataset, and returns the path of the plan."""
    path = str(directory / "plan.json")
    scans = str(prepared / "media.parquet")
    assert plan_command.main(["--manifest", scans, "--out", path, *CONFIG]) == 0
    return path


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_codec_that_takes_too_much_memory_is_one_line(
    media: Path, tmp_path: Path, workers: str
):
    codec = ("--codec", f"{CODECS}:BatchedOutOfMemory", "--workers", workers)
    message = r"codec too large ran out of memory on a batch of \d clips of .*; lower"
    with pytest.raises(InputError, match=message):
        prepare(media, tmp_path / "out", *codec)
    assert num_done(tmp_path / "out") == 13, "the scans are kept"


def test_results_that_wait_for_others_are_bounded(
    media: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No batch is ever full here, so each waits until the bound is reached."""
    monkeypatch.setattr("jaxload.media.workers.MAX_UNWRITTEN", 12)
    monkeypatch.setattr("jaxload.media.encode_part._MAX_WAITING", 6)
    add, counts = PartWriter._add, []

    def record(writer: PartWriter, item: Any) -> None:
        add(writer, item)
        counts.append(writer._step.num_unwritten)

    monkeypatch.setattr(PartWriter, "_add", record)
    out = tmp_path / "out"
    assert prepare(media, out, "--codec", f"{CODECS}:LargeBatches") == 0
    assert 6 < max(counts) <= 12
    assert shards(out) == shards(prepared)


@pytest.mark.slow
def test_a_file_that_kills_encoders_is_found_and_left_out(
    media: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """Encoders die on a batch with the file, then on the file by itself."""
    codec = ("--codec", f"{CODECS}:BatchedDiesOnPicture", "--workers", "2")
    assert prepare(media, tmp_path / "out", *codec) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("an encoder died (killed by SIGKILL) at more/picture") == 2
    assert shown.count(f"an encoder died (killed by SIGKILL) at {PICTURE}") >= 1
    assert f"bad 1: its encoder died twice, such as {PICTURE}" in shown
    assert "encoding files: 13/13 in" in shown  # Not more, for the part that restarts.
    assert ids(tmp_path / "out") == [i for i in ids(prepared) if i != PICTURE]


@pytest.mark.slow
def test_an_encoder_that_dies_at_its_start_ends_it(media: Path, tmp_path: Path):
    codec = ("--codec", f"{CODECS}:BatchedDiesAtStart", "--workers", "1")
    with pytest.raises(InputError, match=r"die at their start or while idle \(kil"):
        prepare(media, tmp_path / "out", *codec)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["main", "encoder", "worker"])
def test_any_process_may_be_killed(
    media: Path, prepared: Path, tmp_path: Path, victim: str
):
    out, pids = tmp_path / "out", tmp_path / "pids"
    pids.mkdir()
    codec = ("--codec", f"{CODECS}:SlowBatches", "--workers", "2")
    arguments = command_line(media, out, *codec)
    environment = {**os.environ, "JAXLOAD_TEST_PIDS": str(pids)}
    before = named_memory()
    process = subprocess.Popen(
        arguments,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: bool(list(pids.iterdir())))
    encoder = int(next(pids.iterdir()).name)
    children = children_of(process.pid)
    workers = [pid for pid in children if pid != encoder]
    target = {"main": process.pid, "encoder": encoder, "worker": workers[0]}[victim]
    os.kill(target, signal.SIGKILL)
    _, errors = process.communicate()
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in children))
    if victim == "main":
        assert process.returncode == -signal.SIGKILL
        assert num_done(out) > 0
        result = subprocess.run(
            arguments, env=environment, capture_output=True, check=False
        )
        assert result.returncode == 0, result.stderr
    else:
        assert process.returncode == 0, errors
    assert shards(out) == shards(prepared)
    assert ids(out) == ids(prepared)
    assert not list(out.glob(".*")), "nothing half written is left"
    assert named_memory() == before


@pytest.mark.soak
@pytest.mark.parametrize("more", [0, 3, 8])
def test_killed_at_any_time_batches_end_with_the_same_bytes(
    media: Path, prepared: Path, tmp_path: Path, more: int
):
    """Kills the command and its processes when some parts are encoded."""
    out = tmp_path / "out"
    codec = ("--codec", f"{CODECS}:SlowBatches", "--workers", "2")
    arguments = command_line(media, out, *codec)
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and num_done(out) < 13 + more:
        time.sleep(0.002)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    first = manifest_bytes(out) if (out / "manifest.parquet").exists() else b""
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not first
    assert shards(out) == shards(prepared)
    assert ids(out) == ids(prepared)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["import", "decoding", "encoding"])
def test_an_interrupt_is_one_line(media: Path, tmp_path: Path, moment: str):
    """Interrupts all processes, as a terminal does at Ctrl-C."""
    out, pids = tmp_path / "out", tmp_path / "pids"
    pids.mkdir()
    codec = ("--codec", f"{CODECS}:SlowBatches", "--workers", "2")
    process = process_groups.start(
        command_line(media, out, *codec), JAXLOAD_TEST_PIDS=str(pids)
    )
    reached = {
        "import": lambda: process_groups.num_children(process.pid) > 0,
        "decoding": lambda: num_done(out) > 2,
        "encoding": lambda: bool(list(pids.iterdir())),
    }
    wait_until(reached[moment])
    assert process_groups.interrupt(process) == (
        130,
        ["jaxload.prepare: interrupted; the same command continues"],
    )


def children_of(pid: int) -> list[int]:
    """Returns the worker and encoder processes that a process has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in path.read_text().split()]
    return [c for c in found if "spawn_main" in Path(f"/proc/{c}/cmdline").read_text()]
