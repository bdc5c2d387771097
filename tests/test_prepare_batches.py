"""Tests of python -m jaxload.prepare with codecs that encode batches."""

import csv
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxload.data.manifest import read_manifest
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from tests.test_prepare import (
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
    before = set(os.listdir("/dev/shm"))
    assert prepare(media, tmp_path / "out", *BATCHED, *where) == 0
    assert shards(tmp_path / "out") == shards(prepared)
    assert ids(tmp_path / "out") == ids(prepared)
    assert set(os.listdir("/dev/shm")) == before


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


def test_no_encoder_is_refused(media: Path, tmp_path: Path):
    with pytest.raises(InputError, match="--encoders 0: expected 1 or more"):
        prepare(media, tmp_path / "out", "--encoders", "0")


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
    assert f"bad 1: its worker died twice, such as {PICTURE}" in shown
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
    before = set(os.listdir("/dev/shm"))
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
    assert set(os.listdir("/dev/shm")) == before


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
def test_an_interrupt_is_one_line(media: Path, tmp_path: Path):
    pids = tmp_path / "pids"
    pids.mkdir()
    codec = ("--codec", f"{CODECS}:SlowBatches", "--workers", "2")
    process = subprocess.Popen(
        command_line(media, tmp_path / "out", *codec),
        env={**os.environ, "JAXLOAD_TEST_PIDS": str(pids)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: bool(list(pids.iterdir())))
    children = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.strip().splitlines() == [
        "jaxload.prepare: interrupted; the same command continues"
    ]
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in children))


def children_of(pid: int) -> list[int]:
    """Returns the worker and encoder processes that a process has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in path.read_text().split()]
    return [c for c in found if "spawn_main" in Path(f"/proc/{c}/cmdline").read_text()]


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, "waited for 120 s in vain"
        time.sleep(0.01)
