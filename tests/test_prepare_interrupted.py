"""Tests of updates by python -m jaxload.prepare that are interrupted or shared."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload import prepare as command
from jaxload.codecs.haar import HaarCodec
from jaxload.data.manifest_metadata import FILE_NAME, read_generations
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.media.encode_part import EncodePart
from jaxload.media.scan_part import ScanPart
from jaxload.shapes.token_order import to_tokens
from tests.media.projects import Project, change_everything, make_finished, rows

PATCH = (1, 2, 2)
HOUR_NS = 3_600_000_000_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Prepares a small media folder."""
    return make_finished(tmp_path_factory.mktemp("updates"))


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    return finished.copy(tmp_path / "project")


# --- Interrupted updates, several machines ---


@pytest.fixture(scope="module")
def updated(finished: Project) -> Project:
    """Changes media of the finished dataset, and updates a copy without interrupts."""
    project = finished.copy(finished.path.with_name(f"{finished.path.name}-updated"))
    change_everything(project)
    project.prepare()
    return project


@pytest.fixture
def outdated(finished: Project, updated: Project, tmp_path: Path) -> Project:
    """Returns the media of `updated` with the dataset of before."""
    project = Project(tmp_path / "project")
    shutil.copytree(updated.media, project.media)  # Keeps time stamps.
    shutil.copytree(finished.out, project.out)
    return project


def test_machines_share_an_update(outdated: Project, updated: Project):
    old = outdated.files()
    outdated.prepare("--shard", "1/2")
    outdated.prepare("--shard", "0/2")
    assert outdated.files()[FILE_NAME] == old[FILE_NAME]
    outdated.prepare("--shard", "1/2")
    assert outdated.files() == updated.files()


def test_workers_make_the_same_update(outdated: Project, updated: Project):
    outdated.prepare("--workers", "2")
    assert outdated.files() == updated.files()


@pytest.mark.slow
def test_two_updates_at_once_make_the_same_bytes(outdated: Project, updated: Project):
    program = [sys.executable, "-m", "jaxload.prepare", *outdated.arguments()]
    both = [
        subprocess.Popen(program, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert outdated.files() == updated.files()


@pytest.mark.slow
def test_on_ray_the_update_is_the_same(outdated: Project, updated: Project):
    arguments = [a for a in outdated.arguments("--ray") if a not in ("--workers", "0")]
    program = [sys.executable, "-m", "jaxload.prepare", *arguments]
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    result = subprocess.run(
        program, capture_output=True, text=True, check=False, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert outdated.files() == updated.files()


def num_written(project: Project) -> int:
    """Counts the files that an update writes, one after the other."""
    tables = (project.out / "parts").glob("*.parquet")
    return len([*tables, *project.out.glob("files*"), *project.out.glob("shard-*")])


@pytest.mark.soak
@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_update_killed_at_any_time_ends_with_the_same_bytes(
    outdated: Project, updated: Project, workers: str
):
    arguments = outdated.arguments("--workers", workers)
    program = [sys.executable, "-m", "jaxload.prepare", *arguments]
    first, last = num_written(outdated), num_written(updated)
    assert last - first == 13  # List of files, and of each part two tables and a shard.
    old, kills = outdated.files(), 0
    for target in range(first + 1, last + 1, 2):
        process = subprocess.Popen(
            program, stdout=subprocess.DEVNULL, start_new_session=True
        )
        while process.poll() is None and num_written(outdated) < target:
            time.sleep(0.001)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
        # Whatever was written, the dataset of before can be read.
        assert len(outdated.manifest()) >= len(old) - 1
    assert kills >= 2
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert outdated.files() == updated.files()
    assert not list(outdated.out.glob(".*")), "nothing half written is left"


def interrupt(project: Project, monkeypatch: pytest.MonkeyPatch, stage: type) -> None:
    """Interrupts a preparation before the last part of a stage."""
    make_runner = command._runner

    def runner(args):
        inner = make_runner(args)

        def run(parts, **hooks) -> None:
            if isinstance(parts[0], stage):
                inner(parts[:-1], **hooks)
                raise KeyboardInterrupt
            inner(parts, **hooks)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(command, "_runner", runner)
        with pytest.raises(KeyboardInterrupt):
            project.prepare()


@pytest.mark.parametrize("stage", [ScanPart, EncodePart])
def test_media_that_change_while_an_update_is_interrupted(
    outdated: Project, monkeypatch: pytest.MonkeyPatch, stage: type
):
    interrupt(outdated, monkeypatch, stage)
    outdated.draw("a2.png", seed=80)
    (outdated.media / "g.mp4").unlink()
    outdated.prepare()
    manifest = outdated.manifest()
    used = rows(manifest)
    assert [row[1] for row in sorted(used)] == [
        *("a.png", "a2.png", "b.png", "d.png", "e.mp4", "f.mp4")
    ]
    records = open_records(manifest)
    video = np.array(Image.open(outdated.media / "a2.png"))[None]
    row = manifest.used_rows[[name for name, *_ in used].index("a2.png")]
    tokens = decode_record(records[int(row)]).tokens
    expected = to_tokens(HaarCodec().encode(video), PATCH).astype(tokens.dtype)
    np.testing.assert_array_equal(tokens, expected)
    changes = {row["outcome"]: row["name"] for row in outdated.report()}
    assert changes["new"] == "a2.png"
    assert "g.mp4" not in {row["name"] for row in outdated.report()}


@pytest.mark.parametrize("stage", [ScanPart, EncodePart])
def test_media_that_change_before_the_first_manifest(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: type
):
    project = Project(tmp_path / "project")
    shutil.copytree(finished.media, project.media)
    interrupt(project, monkeypatch, stage)
    (project.media / "bad.png").unlink()
    project.draw("a.png", seed=90)
    project.caption("d.png", "another caption")
    project.prepare()
    manifest = project.manifest()
    assert Counter(row[1] for row in rows(manifest)) == {
        **dict.fromkeys(("a.png", "b.png", "c.png", "d.png", "f.mp4"), 1),
        "e.mp4": 2,
    }
    assert dict((row[1], row[3]) for row in rows(manifest))["d.png"].startswith("ano")
    assert len(read_generations(project.out, PATCH)[0]) == 1
    assert "bad" not in {row["outcome"] for row in project.report()}
    before = project.files()
    project.prepare()
    assert project.files() == before


def test_too_many_bad_files_stop_an_update_and_lose_nothing(project: Project):
    old = project.files()
    for i in range(5):
        (project.media / f"bad{i}.png").write_bytes(b"no picture")
    project.draw("g.png", seed=3)
    with pytest.raises(InputError, match=r"6 of 13 files are bad .*; fix the files"):
        project.prepare()
    assert project.files() == old
    assert {"new", "bad"} <= {row["outcome"] for row in project.report()}
    for i in range(5):
        (project.media / f"bad{i}.png").unlink()
    project.prepare()
    assert "g.png" in {row[1] for row in rows(project.manifest())}


# --- Files that change between the stages ---


def test_the_older_of_two_updates_does_not_replace_the_newer_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    project.draw("g.png", seed=50)
    nested: list[str] = []

    def update_again() -> None:
        if not nested:
            nested.append("h.png")
            project.draw("h.png", seed=51)
            project.prepare()

    with pytest.raises(InputError, match=r"another process has recorded later changes"):
        change_before_encoding(project, monkeypatch, update_again)
    newest = project.files()
    assert {"g.png", "h.png"} <= {row[1] for row in rows(project.manifest())}
    project.prepare()
    assert project.files() == newest


def change_before_encoding(
    project: Project, monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
) -> None:
    make_runner = command._runner

    def runner(args):
        inner = make_runner(args)

        def run(parts, **hooks) -> None:
            if isinstance(parts[0], EncodePart):
                change()
            inner(parts, **hooks)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(command, "_runner", runner)
        project.prepare()


def test_a_file_replaced_between_scan_and_encoding_is_named_and_encoded_later(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    project.draw("g.bmp", seed=50)
    replace = functools.partial(project.draw, "g.bmp", seed=51)
    change_before_encoding(project, monkeypatch, replace)
    bad = {row["name"]: row for row in project.report() if row["outcome"] == "bad"}
    assert bad["g.bmp"]["reason"] == "changed while it was prepared"
    assert "g.bmp" not in {row[1] for row in rows(project.manifest())}
    project.prepare()
    assert "g.bmp" in {row[1] for row in rows(project.manifest())}


def test_a_file_touched_between_scan_and_encoding_is_encoded(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    project.draw("g.bmp", seed=50)
    touch = functools.partial(os.utime, project.media / "g.bmp", ns=(0, HOUR_NS))
    change_before_encoding(project, monkeypatch, touch)
    assert "g.bmp" in {row[1] for row in rows(project.manifest())}
    old = project.files()
    project.prepare()
    assert project.files() == old
