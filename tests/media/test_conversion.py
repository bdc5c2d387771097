"""Tests of jaxload.media.conversion and converted_records: prepare --convert."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from jaxload import prepare as command
from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.manifest_metadata import FILE_NAME, read_generations
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.media.part_tables import read_encoded
from jaxload.media.shard_writer import ShardWriter
from jaxload.models.transformer_config import TransformerConfig
from tests.media.earlier_formats import to_format
from tests.media.projects import (
    CONFIG,
    Project,
    change_everything,
    make_finished,
    rows,
)

PATCH = (1, 2, 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_finished(tmp_path_factory.mktemp("conversion"))


@pytest.fixture(scope="module")
def updated(
    finished: Project, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, Project]:
    """Returns a dataset of two generations, and the same as version 2 wrote it."""
    new = finished.copy(tmp_path_factory.mktemp("updated") / "project")
    change_everything(new)
    new.prepare()
    old = new.copy(tmp_path_factory.mktemp("latents") / "project")
    to_format(old, 3)
    return new, old


def convert(source: Path, out: Path, *more: str) -> int:
    return command.main(["--convert", str(source), "--out", str(out), *CONFIG, *more])


def content(manifest: Manifest) -> list[tuple[str, bytes]]:
    """Returns the id and the record of all rows, with masked ones."""
    records = open_records(manifest)
    ids = manifest.read_column("id").to_pylist()
    return [(name, records[row]) for row, name in enumerate(ids)]


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# --- Results ---


def test_a_converted_dataset_is_the_one_that_is_prepared(
    updated: tuple[Project, Project], tmp_path: Path, capsys: pytest.CaptureFixture
):
    new, old = updated
    before = files(old.out)
    assert convert(old.out, tmp_path / "out") == 0
    assert files(old.out) == before
    shown = capsys.readouterr().out
    assert "converting clips of" in shown
    assert ": 11/11 in" in shown
    expected, found = new.manifest(), read_manifest(tmp_path / "out")
    assert content(found) == content(expected)
    assert found.masked == expected.masked
    assert found.digest() == expected.digest()
    columns = pq.read_table(new.out / FILE_NAME)
    assert pq.read_table(tmp_path / "out" / FILE_NAME).equals(columns)
    assert read_generations(tmp_path / "out", PATCH) == read_generations(new.out, PATCH)
    # Earlier versions counted frames beyond the length of a shape by themselves.
    frames = [read_encoded(out, 0).frames for out in (new.out, tmp_path / "out")]
    assert frames[1].uneven == frames[0].uneven + 3
    assert not list(tmp_path.glob(".*"))


def test_a_dataset_of_one_generation_gets_starts(finished: Project, tmp_path: Path):
    old = finished.copy(tmp_path / "project")
    to_format(old, 2)
    assert convert(old.out, tmp_path / "out") == 0
    found = read_manifest(tmp_path / "out")
    assert rows(found) == rows(finished.manifest())
    assert content(found) == content(finished.manifest())


def test_a_converted_dataset_is_updated(
    updated: tuple[Project, Project], tmp_path: Path, capsys: pytest.CaptureFixture
):
    _, old = updated
    project = old.copy(tmp_path / "project")
    (project.out / "parts" / "shapes.json").write_text('["5x8x8", "1x8x8", "1x4x8"]')
    assert convert(project.out, tmp_path / "new") == 0
    shutil.rmtree(project.out)
    (tmp_path / "new").rename(project.out)
    converted = project.files()
    recorded = {p.name: p.read_text() for p in (project.out / "parts").glob("s*.json")}
    sizes = '["4x8", "8x8"]'
    assert recorded == {"sizes.json": sizes, "sizes-00001.json": sizes}
    project.prepare()
    assert "nothing to update: 8 unchanged" in capsys.readouterr().out
    assert project.files() == converted
    before = project.manifest()
    project.draw("h.mp4", seed=30, num_frames=13)
    project.prepare()
    shown = capsys.readouterr().out
    assert "1 new, 0 changed, 0 recaptioned, 0 removed, 8 unchanged" in shown
    manifest = project.manifest()
    assert rows(manifest) == [*rows(before), ("h.mp4", "h.mp4", 0, "")]
    assert len(read_generations(project.out, PATCH)[0]) == 3
    assert project.manifest(digest=before.digest()).digest() == before.digest()


def test_the_shapes_of_a_plan_become_its_sizes(finished: Project, tmp_path: Path):
    old = finished.copy(tmp_path / "project")
    to_format(old, 3)
    path = old.out / "preparation.json"
    claim = json.loads(path.read_text()) | {"shapes": "1x8x8, 5x8x8, 1x4x8"}
    path.write_text(json.dumps(claim))
    (old.out / "parts" / "shapes.json").unlink()
    assert convert(old.out, tmp_path / "out") == 0
    found = json.loads((tmp_path / "out" / "preparation.json").read_text())
    # An update needs no plan.
    assert (found["version"], found["sizes"]) == (3, "chosen")
    assert found["is_causal"] is True
    assert "shapes" not in found
    sizes = (tmp_path / "out" / "parts" / "sizes.json").read_text()
    assert sizes == '["4x8", "8x8"]'


def test_tokens_of_another_patch_are_converted(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as context:
        context.setattr(TransformerConfig, "patch", (1, 4, 2))
        assert convert(finished.out, tmp_path / "coarse") == 0
    old, new = content(finished.manifest()), tmp_path / "coarse"
    assert json.loads((new / "preparation.json").read_text())["geometry"] == (
        "strides 4x8x8 and patch 1x4x2"
    )
    with pytest.raises(InputError, match="expected records of tokens of patch 1x2x2"):
        read_manifest(new)
    assert convert(new, tmp_path / "back") == 0
    assert content(read_manifest(tmp_path / "back")) == old
    claims = [path / "preparation.json" for path in (tmp_path / "back", finished.out)]
    back, expected = (json.loads(path.read_text()) for path in claims)
    assert back == expected


def test_a_dataset_that_was_not_prepared_from_media_is_converted(
    finished: Project, tmp_path: Path
):
    old = finished.copy(tmp_path / "project")
    to_format(old, 3)
    for path in [*old.out.glob("*.json"), *old.out.glob("files*")]:
        path.unlink()
    shutil.rmtree(old.out / "parts")
    assert convert(old.out, tmp_path / "out") == 0
    assert content(read_manifest(tmp_path / "out")) == content(finished.manifest())


def test_records_of_a_codec_that_is_not_causal_do_not_claim_it(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = finished.copy(tmp_path / "project")
    to_format(old, 3)
    monkeypatch.setattr("jaxload.codecs.haar.HaarCodec.is_causal", False)
    assert convert(old.out, tmp_path / "out") == 0
    manifest = read_manifest(tmp_path / "out")
    assert not manifest.may_cut
    assert np.isfinite(decode_record(open_records(manifest)[0]).text.sum())


# --- Interrupts ---


class Killed(BaseException):
    """Stops a conversion at once, as a signal does."""


def test_an_interrupted_conversion_continues(
    updated: tuple[Project, Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    new, old = updated
    out, write, count = tmp_path / "out", ShardWriter.write, iter(range(6))

    def write_some(self: ShardWriter, record: bytes) -> None:
        if next(count, None) is None:
            raise Killed
        write(self, record)

    with monkeypatch.context() as context:
        context.setattr(ShardWriter, "write", write_some)
        with pytest.raises(Killed):
            convert(old.out, out)
    assert not out.exists()
    (partial,) = tmp_path.glob(".*")
    done = {path: path.stat().st_mtime_ns for path in partial.glob("shard-*")}
    assert 2 < len(done) < len(new.manifest().shards)
    assert convert(old.out, out) == 0
    assert {out / p.name: (out / p.name).stat().st_mtime_ns for p in done} == {
        out / path.name: time_ns for path, time_ns in done.items()
    }
    assert content(read_manifest(out)) == content(new.manifest())
    assert not list(tmp_path.glob(".*"))


@pytest.mark.soak
def test_killed_at_any_time_a_conversion_continues(
    updated: tuple[Project, Project], tmp_path: Path
):
    new, old = updated
    out = tmp_path / "out"
    arguments = ["--convert", str(old.out), "--out", str(out), *CONFIG]
    arguments = [sys.executable, "-m", "jaxload.prepare", *arguments]
    kills = 0
    for target in (1, 3, 6, 9, 15, 20):
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(list(tmp_path.rglob("*"))) < target:
            time.sleep(0.001)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
            process.wait()
            assert not out.exists()
    assert kills >= 2
    assert out.exists() or subprocess.run(arguments, check=False).returncode == 0
    assert content(read_manifest(out)) == content(new.manifest())


def test_another_conversion_is_not_continued(
    updated: tuple[Project, Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def kill(self: ShardWriter, record: bytes) -> None:
        raise Killed

    _, old = updated
    with monkeypatch.context() as context:
        context.setattr(ShardWriter, "write", kill)
        with pytest.raises(Killed):
            convert(old.out, tmp_path / "out")
    monkeypatch.setattr(TransformerConfig, "patch", (1, 4, 2))
    with pytest.raises(InputError, match=r"\.out\.converting: holds .*\(geometry "):
        convert(old.out, tmp_path / "out")


# --- Refused ---


def refused(source: Path, out: Path, *more: str) -> str:
    """Returns the one line that refuses a conversion, which leaves nothing at `out`."""
    before = files(source)
    with pytest.raises(InputError) as error:
        convert(source, out, *more)
    assert files(source) == before
    assert "\n" not in str(error.value)
    return str(error.value)


def test_paths_that_cannot_be_used_are_refused(finished: Project, tmp_path: Path):
    source, media = finished.out, ("--media", str(finished.media))
    assert "expected a prepared dataset" in refused(finished.media, tmp_path / "out")
    assert "outside the dataset to convert" in refused(source, source)
    assert "outside the dataset to convert" in refused(source, source / "new")
    assert "exists already; choose another" in refused(source, finished.media)
    assert "hold tokens of patch 1x2x2 already" in refused(source, tmp_path / "out")
    assert "--media: has no effect with" in refused(source, tmp_path / "out", *media)
    with pytest.raises(InputError, match="--out: expected a directory for the new"):
        command.main(["--convert", str(source)])
    assert not list(tmp_path.iterdir())


def test_another_codec_or_patch_is_refused(
    updated: tuple[Project, Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, out = updated[1].out, tmp_path / "out"
    codec = ("--codec", "tests.media.codecs:Inverted")
    assert "made with data.codec=haar, got" in refused(source, out, *codec)
    monkeypatch.setattr(TransformerConfig, "patch", (1, 3, 2))
    message = "shape 1x8x8: expected a height and width in multiples of 3 and 2"
    assert message in refused(source, out)
    assert not list(tmp_path.iterdir())


def test_other_strides_of_the_codec_are_refused(
    updated: tuple[Project, Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jaxload.codecs.haar.HaarCodec.strides", (4, 16, 8))
    message = "expected strides 4x16x8, as of codec haar, got strides 4x8x8"
    assert message in refused(updated[1].out, tmp_path / "out")


def damage_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (
            "shard-00000.array_record",
            damage_end,
            r"shard-00000.* the shard is truncated",
        ),
        ("shard-00000.array_record", Path.unlink, r"shard-00000.* does not exist"),
        ("manifest.parquet", damage_end, r"manifest.parquet: not a manifest"),
        ("parts/part-00000.parquet", damage_end, r"part-00000.parquet: expected a"),
        (
            "parts/scan-00000.parquet",
            Path.unlink,
            r"scan-00000.parquet cannot be copied",
        ),
        ("files.parquet", damage_end, r"files.parquet: not a list of media files"),
        ("parts/shapes.json", damage_end, r"shapes.json: expected a list of sizes"),
        ("preparation.json", damage_end, r"preparation.json: not JSON"),
    ],
)
def test_damaged_files_are_named(
    updated: tuple[Project, Project],
    tmp_path: Path,
    name: str,
    damage: Callable[[Path], None],
    message: str,
):
    project = updated[1].copy(tmp_path / "project")
    damage(project.out / name)
    with pytest.raises(InputError, match=message):
        convert(project.out, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_record_is_named(
    updated: tuple[Project, Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = updated[1].copy(tmp_path / "project")
    # A shard whose ends are intact, of which only a digest of the record can tell.
    monkeypatch.setattr("jaxload.media.conversion.check_shard", lambda *_: None)
    path = min(project.out.glob("shard-*"))
    damage_byte(path)
    message = rf"{path.name}, record 0: cannot be read"
    with pytest.raises(InputError, match=message):
        convert(project.out, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_record_of_another_shape_is_named(
    updated: tuple[Project, Project], tmp_path: Path
):
    project = updated[1].copy(tmp_path / "project")
    path = project.out / FILE_NAME
    table = pq.read_table(path)
    index = table.schema.get_field_index("frames")
    frames = np.array(table["frames"]) + 1
    field = table.schema.field(index)
    pq.write_table(table.set_column(index, field, [frames.astype(np.int32)]), path)
    message = r"shard-00000.array_record, record 0: .*\(a latent of 1x8x8, expected 2x8"
    with pytest.raises(InputError, match=message):
        convert(project.out, tmp_path / "out")


def test_a_full_disk_is_one_line(
    updated: tuple[Project, Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, old = updated
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000)
    with monkeypatch.context() as context:
        context.setattr(shutil, "disk_usage", lambda path: usage)
        message = r"--out .*/out: expected 0.0 GB of free disk space, got 0.0 GB; free"
        with pytest.raises(InputError, match=message):
            convert(old.out, tmp_path / "out")
    program = (
        "import resource, signal, sys; from jaxload import command, prepare;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000));"
        "command.run('jaxload.prepare', prepare.main)"
    )
    arguments = ["--convert", str(old.out), "--out", str(tmp_path / "out"), *CONFIG]
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert "converting: a shard cannot be written (write() failed: File too" in line
    assert convert(old.out, tmp_path / "out") == 0


def test_a_lost_shard_of_a_converted_dataset_is_not_encoded_again(
    updated: tuple[Project, Project], tmp_path: Path
):
    """Its clips could have been cut to shapes, and would get other frames."""
    project = updated[1].copy(tmp_path / "project")
    assert convert(project.out, tmp_path / "new") == 0
    shutil.rmtree(project.out)
    (tmp_path / "new").rename(project.out)
    (project.out / "shard-00001.array_record").unlink()
    with pytest.raises(
        InputError, match=r"shard-00001.*dataset was converted; restore"
    ):
        project.prepare()
