"""Compares `python -m jaxload.prepare` with FFmpeg's program on every kind of media.

The program is a second, separately built FFmpeg, of the package imageio-ffmpeg in
.venv/clips (requirements-clips.lock), which is not imported.
"""

import csv
import os
import subprocess
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from jaxload import prepare as command
from jaxload.data.manifest import read_manifest
from tests.media.every_kind import BAD, DAMAGED, FPS, FRAMES, write_every_kind

MAX_PIXELS = 1280 * 720
NOTED = {"no caption"}


class Word(NamedTuple):
    """Frames of a file and their size as displayed, according to FFmpeg's program."""

    num_frames: int
    height: int
    width: int


@pytest.fixture(scope="module")
def ffmpeg(real_clips: Path) -> Path:
    """Returns FFmpeg's program; without it, skips or, in CI, fails."""
    found = list(real_clips.glob("imageio_ffmpeg/binaries/ffmpeg-*"))
    if not found:
        reason = f"{real_clips} has no imageio_ffmpeg; run `make clips`"
        if os.environ.get("JAXLOAD_REQUIRE_CLIPS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found[0]


def word(ffmpeg: Path, path: Path, *, strict: bool) -> Word:
    """Returns FFmpeg's word on the stream with the most frames.

    FFmpeg turns frames to be upright, but does not stretch pixels that are not square.
    """
    stop = ["-xerror", "-err_detect", "crccheck+explode"] if strict else []
    run = subprocess.run(
        [
            *(str(ffmpeg), "-v", "error", *stop, "-i", str(path), "-map", "0:v"),
            *("-fps_mode", "passthrough", "-f", "framehash", "-hash", "murmur3", "-"),
        ],
        capture_output=True,
        text=True,
        check=False,  # It fails at damage, after the frames before it.
    )
    lines = [line.split() for line in run.stdout.splitlines()]
    stated = {(a, b): c for line in lines if len(line) == 3 for a, b, c in [line]}
    frames = Counter(line[0] for line in lines if line and line[0][0] != "#")
    if not frames:
        return Word(0, 0, 0)
    ((stream, num_frames),) = frames.most_common(1)
    stream = stream.replace(",", ":")
    width, height = map(int, stated["#dimensions", stream].split("x"))
    ratio = Fraction(stated["#sar", stream].replace("/0", "/1")) or Fraction(1)
    if ratio < 1:  # A video with wide pixels, turned by 90 degrees.
        return Word(num_frames, round(height / ratio), width)
    return Word(num_frames, height, round(width * ratio))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepares every kind of media, and returns the directory around it."""
    folder = tmp_path_factory.mktemp("kinds")
    write_every_kind(folder / "media")
    options = ["--media", str(folder / "media"), "--out", str(folder / "out")]
    fields = [f"shapes.fps={FPS}", f"data.max_source_pixels={MAX_PIXELS}"]
    sets = [option for field in fields for option in ("--set", field)]
    command.main([*options, *sets, "--max-bad-share", "0.5", "--workers", "0"])
    return folder


@pytest.fixture(scope="module")
def scanned(prepared: Path) -> dict[str, Word]:
    """Returns the frames and sizes that `prepare` measured."""
    rows = pq.read_table(prepared / "out" / "media.parquet").to_pylist()
    return {
        row["id"]: Word(row["num_frames"], row["height"], row["width"]) for row in rows
    }


@pytest.fixture(scope="module")
def report(prepared: Path) -> dict[str, dict[str, str]]:
    """Returns the outcomes of each file in the report, with their details."""
    found: dict[str, dict[str, str]] = {}
    with (prepared / "out" / "report.csv").open() as file:
        for row in csv.DictReader(file):
            if row["reason"] not in NOTED:
                name = row["name"].partition("@")[0]
                outcome = f"{row['outcome']}: {row['reason']}"
                found.setdefault(name, {})[outcome] = row["detail"]
    return found


def test_there_are_more_than_a_hundred_kinds(prepared: Path):
    files = list((prepared / "media").iterdir())
    assert len({path.read_bytes() for path in files}) > 190
    assert len({path.suffix for path in files}) > 35


def test_frames_and_sizes_are_those_that_ffmpeg_finds(
    ffmpeg: Path, prepared: Path, scanned: dict[str, Word]
):
    files = sorted((prepared / "media").iterdir())
    expected = {
        path.name: word(ffmpeg, path, strict=path.name in DAMAGED)
        for path in files
        if path.name not in BAD
    }
    assert scanned == expected
    assert all(scanned[name].num_frames < 24 for name in DAMAGED)


def test_bad_files_are_named_with_their_reason(
    scanned: dict[str, Word], report: dict[str, dict[str, str]]
):
    bad = {
        name: outcome.partition(": ")[2]
        for name, outcomes in report.items()
        for outcome in outcomes
        if outcome.startswith("bad: ")
    }
    assert bad == BAD
    assert not scanned.keys() & BAD.keys()
    assert report["large.png"]["bad: too many pixels"] == (
        "1,310,720 pixels; expected at most 921,600 (data.max_source_pixels)"
    )


def test_damaged_videos_are_used_up_to_the_damage(
    scanned: dict[str, Word], report: dict[str, dict[str, str]]
):
    outcome = "noted: damaged, used up to the damage"
    details = {n: o[outcome] for n, o in report.items() if outcome in o}
    assert details.keys() == DAMAGED
    for name, detail in details.items():
        assert detail.startswith(f"damaged after frame {scanned[name].num_frames}: ")


def test_each_file_is_kept_or_has_a_reason(
    prepared: Path, scanned: dict[str, Word], report: dict[str, dict[str, str]]
):
    manifest = read_manifest(prepared / "out")
    sources = manifest.read_column("source").to_pylist()
    latents = manifest.read_column("frames").to_pylist()
    frames = dict(zip(sources, (4 * n - 3 for n in latents), strict=True))
    left_out = {
        name: outcome
        for name, outcomes in report.items()
        for outcome in outcomes
        if outcome.startswith("left out")
    }
    assert frames.keys() | left_out.keys() == scanned.keys()
    assert not frames.keys() & left_out.keys()
    for name, found in scanned.items():
        if name in frames and found.num_frames in (1, FRAMES):
            assert frames[name] == found.num_frames, name
    assert len(frames) > 170
