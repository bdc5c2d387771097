"""Tests that file names and captions are data: no markup, control codes or formulas."""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload import prepare as prepare_command
from jaxload.data.manifest import read_manifest
from jaxload.media.captions import as_utf8

NAMES = [
    "=HYPERLINK(1).png",
    "+1.png",
    "-1.png",
    "@cell.png",
    "[red]brackets[",
    "{0} %s %(x)s.png",
    "$\\frac{$.png",
    ":smile:.png",
    "\x1b]0;title\x07\x1b[31m.png",
    "two\nlines.png",
    "$(touch harm); `touch harm`.png",
]
NOT_UTF8 = os.fsdecode(b"not utf-8 \xff.png")  # Not a name that JSON can hold.
CAPTION = "=1+1 [bold]{0} %s $x$ \x1b[2J :smile: $(touch harm)"


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """Writes an image for each name, with a caption, and a damaged twin."""
    folder = tmp_path / "media"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, name in enumerate([*NAMES, NOT_UTF8]):
        picture = Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8))
        picture.save(folder / name, "PNG")
        (folder / f"{name}.txt").write_text(CAPTION)
        damaged = (folder / name).read_bytes()[:100] + bytes([i])
        (folder / name).with_name(f"{name}.half").write_bytes(damaged)
    return folder


def prepare(media: Path, out: Path) -> int:
    sets = ("shapes.max_frames=1", "shapes.max_pixels=1024")
    options = ["--workers", "0", "--max-bad-share", "1"]
    options += [word for field in sets for word in ("--set", field)]
    return prepare_command.main(["--media", str(media), "--out", str(out), *options])


def test_names_and_captions_change_nothing_but_themselves(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "set"
    assert prepare(media, out) == 0
    said = capsys.readouterr().out
    controls = {code for code in map(ord, said) if code < 32 or 127 <= code < 160}
    assert controls <= {ord("\n"), ord("\t")}

    manifest = read_manifest(out)
    sources = manifest.read_column("source").to_pylist()
    assert sorted(sources) == sorted(NAMES)
    captions = set(manifest.read_column("caption").to_pylist())
    assert captions == {" ".join(CAPTION.split())}
    assert not list(tmp_path.rglob("harm"))

    with (out / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    bad = {row["name"] for row in rows if row["outcome"] == "bad"}
    assert {name.removeprefix("./") for name in bad} == {
        *(f"{name}.half" for name in NAMES),
        as_utf8(NOT_UTF8),
        as_utf8(f"{NOT_UTF8}.half"),
    }
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t"))]


def test_output_whose_encoding_lacks_a_name_is_escaped(media: Path, tmp_path: Path):
    (media / f"{NAMES[0]}.txt").unlink()
    (media / NAMES[0]).rename(media / "+caf\u00e9.png")
    arguments = ["--media", str(media), "--out", str(tmp_path / "set")]
    options = ["--workers", "0", "--max-bad-share", "1"]
    result = subprocess.run(
        [sys.executable, "-m", "jaxload.prepare", *arguments, *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert result.returncode == 0, result.stderr
    assert r"no caption, such as +caf\xe9.png" in result.stdout


def test_the_command_to_run_next_quotes_its_work_directory(
    capsys: pytest.CaptureFixture[str], debug_config
):
    from jaxload.console import Console
    from jaxload.runs.workdir import WorkDir
    from jaxload.train import _print_results

    path = Path("runs/a b; touch harm $(x)")
    _print_results(WorkDir(path), debug_config, Console())
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in lines if "-m jaxload." in line]
    assert len(commands) == 2
    for words in commands:
        assert words[words.index("--workdir") + 1] == str(path)


def test_metadata_is_json_whatever_the_names_are(media: Path, tmp_path: Path):
    out = tmp_path / "set"
    prepare(media, out)
    for path in out.rglob("*.json"):
        json.loads(path.read_text())
