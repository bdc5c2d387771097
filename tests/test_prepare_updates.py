"""Tests of python -m jaxload.prepare on a dataset whose media have changed."""

import dataclasses
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from jaxload.codecs.haar import HaarCodec
from jaxload.data.manifest_metadata import FILE_NAME, read_generations
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.media import changes, history, prepared
from jaxload.media.history import Change, FileChange
from jaxload.shapes.token_order import to_tokens
from tests.media.media_files import moving_pattern
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


# --- Results ---


def test_an_update_appends_and_masks(project: Project, capsys: pytest.CaptureFixture):
    before, old = project.manifest(), project.files()
    capsys.readouterr()
    change_everything(project)
    project.prepare()
    manifest = project.manifest()
    assert sorted(rows(manifest)) == [
        ("a.png", "a.png", 0, "picture a.png"),
        ("a2.png", "a2.png", 0, ""),
        ("b.png", "b.png", 0, "another caption"),
        ("d.png", "d.png", 0, "picture d.png"),
        ("e.mp4", "e.mp4", 0, ""),
        ("f.mp4", "f.mp4", 0, ""),
        ("g.mp4", "g.mp4", 0, ""),
    ]
    now = project.files()
    assert len(now) == len(old) + 4
    assert all(now[name] == old[name] for name in old if name != FILE_NAME)
    # The rows of before are where they were, those of changed files masked.
    first = project.manifest(digest=before.digest())
    assert first.digest() == before.digest()
    assert rows(first) == rows(before)
    assert set(rows(before)) - set(rows(manifest)) == {
        ("b.png", "b.png", 0, "picture b.png"),
        ("c.png", "c.png", 0, "picture c.png"),
        ("e.mp4@0", "e.mp4", 0, ""),
        ("e.mp4@17", "e.mp4", 17, ""),
    }
    assert {*manifest.rows_by_shape} <= {*before.rows_by_shape}
    assert manifest.fingerprint["sizes"] == before.fingerprint["sizes"]
    assert manifest.fingerprint["media"].startswith("8 files, ")
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "files: 2 new, 1 changed, 1 recaptioned, 1 removed, 4 unchanged; 4 clips of "
        "before are masked" in shown
    )
    assert "kept 7 clips from 7 of 8 files" in shown
    assert "encoding files: 4/4" in shown
    assert "frames: 39 decoded" in shown
    changes = {(row["outcome"], row["name"]) for row in project.report()}
    assert {change for change in changes if change[0] != "noted"} == {
        ("new", "a2.png"),
        ("new", "g.mp4"),
        ("changed", "e.mp4"),
        ("recaptioned", "b.png"),
        ("removed", "c.png"),
        ("bad", "bad.png"),
    }


def test_records_of_an_update_are_those_of_the_new_files(project: Project):
    change_everything(project)
    project.prepare()
    manifest = project.manifest()
    records, ids = open_records(manifest), manifest.read_column("id").to_pylist()
    for row in manifest.used_rows.tolist():
        if ids[row].endswith(".png"):
            video = np.array(Image.open(project.media / ids[row]))[None]
            tokens = decode_record(records[row]).tokens
            expected = to_tokens(HaarCodec().encode(video), PATCH).astype(tokens.dtype)
            np.testing.assert_array_equal(tokens, expected)


def draw_wide(project: Project, name: str) -> None:
    """Writes an image that suits no size of the project."""
    rgb = moving_pattern(1, 32, 64)[0]
    Image.fromarray(rgb).save(project.media / name)


def test_an_update_adds_a_size_below_the_limit(project: Project):
    old = project.files()
    sizes = project.out / "parts" / "sizes.json"
    recorded = sizes.read_bytes()
    draw_wide(project, "wide.png")
    project.prepare()
    assert project.manifest().fingerprint["sizes"] == "4x8, 8x8"
    assert "wide.png" in {row[0] for row in rows(project.manifest())}
    assert sizes.read_bytes() == recorded
    assert (
        project.files().items()
        >= {name: content for name, content in old.items() if name != FILE_NAME}.items()
    )


def test_a_lost_shard_is_made_again_with_the_sizes_of_its_update(tmp_path: Path):
    project = Project(tmp_path)
    project.media.mkdir()

    def draw(width: int, num_files: int) -> None:
        for i in range(num_files):
            rgb = moving_pattern(1, 64, width, seed=i)[0]
            Image.fromarray(rgb).save(project.media / f"{width}-{num_files}-{i}.png")

    draw(64, 23)
    draw(80, 1)
    project.prepare()
    old = project.files()
    assert project.manifest().fingerprint["sizes"] == "8x8"  # One is too rare.
    draw(80, 2)
    project.prepare()
    assert project.manifest().fingerprint["sizes"] == "8x8"  # Two of 26, likewise.
    draw(80, 3)
    project.prepare()
    assert project.manifest().fingerprint["sizes"] == "8x8, 8x10"
    sources = project.manifest().read_column("source").to_pylist()
    name = project.manifest().shards[sources.index("80-1-0.png")].name
    (project.out / name).unlink()
    project.prepare()
    assert (project.out / name).read_bytes() == old[name]


def test_files_of_later_updates_use_the_sizes_of_before(project: Project):
    draw_wide(project, "wide.png")
    project.prepare()
    project.draw("g.mp4", seed=80, num_frames=5)
    draw_wide(project, "wide2.png")
    project.prepare()
    manifest = project.manifest()
    assert manifest.fingerprint["sizes"] == "4x8, 8x8"
    shapes = {str(shape) for shape in manifest.rows_by_shape}
    assert shapes == {"1x4x8", "1x8x8", "2x8x8", "5x8x8"}
    # An update that encodes nothing records no sizes.
    (project.media / "wide.png").unlink()
    project.prepare()
    names = {path.name for path in (project.out / "parts").glob("sizes*")}
    assert names == {"sizes.json", "sizes-00001.json", "sizes-00002.json"}


def test_at_the_limit_files_of_other_sizes_are_left_out(tmp_path: Path):
    project = Project(tmp_path)
    project.media.mkdir()
    for i in range(3):
        project.draw(f"{i}.png", seed=i)
    project.prepare("--set", "shapes.max_sizes=1")
    draw_wide(project, "wide.png")
    project.prepare("--set", "shapes.max_sizes=1")
    assert project.manifest().fingerprint["sizes"] == "8x8"
    (row,) = (row for row in project.report() if row["outcome"] == "left out")
    assert (row["name"], row["reason"]) == ("wide.png", "aspect that no shape has")


def test_sizes_that_another_process_recorded_are_used(project: Project):
    draw_wide(project, "wide.png")
    (project.out / "parts" / "sizes-00001.json").write_text('["8x8", "2x4"]')
    project.prepare()
    assert project.manifest().fingerprint["sizes"] == "2x4, 8x8"
    assert "1x2x4" in {str(shape) for shape in project.manifest().rows_by_shape}


def test_without_changes_nothing_is_done(
    project: Project, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    paths = [path for path in project.out.rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in paths}
    capsys.readouterr()
    monkeypatch.setattr("jaxload.reports.prepare.draw_preview", None)
    project.prepare()
    shown = capsys.readouterr().out
    assert "nothing to update: 7 unchanged" in shown
    assert "kept 7 clips from 6 of 7 files" in shown
    assert "scanning" not in shown
    assert "encoding" not in shown
    after = [path for path in project.out.rglob("*") if path.is_file()]
    after = {path: path.stat().st_mtime_ns for path in after}
    report = project.out / "report.csv"  # Written again, with the same text.
    assert {**after, report: 0} == {**before, report: 0}


def test_removed_files_alone_are_masked(project: Project):
    old = project.files()
    (project.media / "a.png").unlink()
    (project.media / "a.txt").unlink()
    project.prepare()
    assert "a.png" not in {row[1] for row in rows(project.manifest())}
    assert project.files().keys() == old.keys()
    assert len(read_generations(project.out, PATCH)[0]) == 2


def test_another_folder_removes_nothing(project: Project):
    old, before = project.files(), rows(project.manifest())
    other = project.path / "other"
    other.mkdir()
    shutil.copy(project.media / "a.png", other / "a.png")
    media = project.media.rename(project.path / "away")
    other.rename(project.media)
    with pytest.raises(
        InputError, match=r"files of the dataset are not there.*--media"
    ):
        project.prepare()
    project.media.rename(other)
    media.rename(project.media)
    project.prepare()
    assert rows(project.manifest()) == before
    assert project.files() == old


def test_a_damaged_table_of_a_part_is_made_again(project: Project):
    before = rows(project.manifest())
    table = project.out / "parts" / "part-00000.parquet"
    table.write_bytes(table.read_bytes()[:100])
    project.prepare()
    assert rows(project.manifest()) == before


@pytest.mark.parametrize("name", ["parts/scan-00000.parquet", "parts/sizes.json"])
def test_other_damaged_files_are_named(project: Project, name: str):
    (project.out / name).write_bytes(b"PAR1")
    change_everything(project)
    with pytest.raises(InputError, match=rf"{name}: expected .* cannot be read"):
        project.prepare()


def test_a_file_that_returns_is_encoded_again(project: Project):
    moved = project.path / "b.png"
    (project.media / "b.png").rename(moved)
    project.prepare()
    moved.rename(project.media / "b.png")
    project.prepare()
    assert len(read_generations(project.out, PATCH)[0]) == 3
    assert Counter(row[1] for row in rows(project.manifest()))["b.png"] == 1


def test_several_updates_follow_each_other(project: Project):
    digests = [project.manifest().digest()]
    used = [rows(project.manifest())]
    for i in range(3):
        project.draw("f.mp4", seed=30 + i, num_frames=9 + 4 * i)
        project.draw(f"new{i}.png", seed=40 + i)
        project.prepare()
        digests.append(project.manifest().digest())
        used.append(rows(project.manifest()))
    assert len({*digests}) == 4
    for digest, expected in zip(digests, used, strict=True):
        assert rows(project.manifest(digest=digest)) == expected


def test_the_scans_for_the_planner_are_those_of_the_newest_files(project: Project):
    change_everything(project)
    project.prepare()
    table = pq.read_table(project.out / "media.parquet")
    names, counts = (table[name].to_pylist() for name in ("id", "num_frames"))
    frames = dict(zip(names, counts, strict=True))
    assert frames == {
        **dict.fromkeys(("a.png", "a2.png", "b.png", "d.png"), 1),
        **{"e.mp4": 20, "f.mp4": 17, "g.mp4": 17},
    }


# --- What is noticed ---


def test_a_file_of_the_same_size_and_name_is_noticed(project: Project):
    """BMP files of one size have the same number of bytes."""
    path = project.media / "g.bmp"
    project.draw(path.name, seed=50)
    project.prepare()
    num_bytes = path.stat().st_size
    project.draw(path.name, seed=51)
    assert path.stat().st_size == num_bytes
    project.prepare()
    manifest = project.manifest()
    row = manifest.read_column("id").to_pylist().index("g.bmp")
    assert row not in manifest.used_rows
    assert "g.bmp" in {row[0] for row in rows(manifest)}
    assert len(read_generations(project.out, PATCH)[0]) == 3


def test_a_touched_or_copied_file_is_not_encoded_again(
    project: Project, capsys: pytest.CaptureFixture
):
    old = project.files()
    for path in project.media.iterdir():
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + HOUR_NS))
    capsys.readouterr()
    project.prepare()
    shown = capsys.readouterr().out
    assert "comparing contents: 7/7" in shown
    assert "nothing to update: 7 unchanged" in shown
    assert "encoding" not in shown
    assert project.files() == old
    # The new time stamps are recorded.
    project.prepare()
    assert "comparing" not in capsys.readouterr().out


def test_files_that_failed_are_tried_again_once_they_change(
    project: Project, capsys: pytest.CaptureFixture
):
    status = (project.media / "bad.png").stat()
    os.utime(project.media / "bad.png", ns=(0, status.st_mtime_ns + HOUR_NS))
    project.prepare()
    assert "nothing to update" in capsys.readouterr().out
    project.prepare("--retry-failed")
    shown = capsys.readouterr().out
    assert "1 retried, 0 removed, 6 unchanged" in shown
    assert "bad 1: not an image or video, such as bad.png" in shown
    assert len(read_generations(project.out, PATCH)[0]) == 1
    project.draw("bad.png", seed=60)
    project.prepare()
    assert "0 new, 1 changed, 0 recaptioned, 0 removed" in capsys.readouterr().out
    assert "bad.png" in {row[1] for row in rows(project.manifest())}


def test_failures_of_a_codec_are_not_retried_by_an_update(
    finished: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    project = Project(tmp_path / "project")
    shutil.copytree(finished.media, project.media)
    flag = tmp_path / "flag"
    monkeypatch.setenv("JAXLOAD_TEST_FLAG", str(flag))
    codec = ("--codec", "tests.media.codecs:FailsWhileFlagged")
    project.prepare(*codec)
    project.draw("g.png", seed=70)
    flag.touch()
    project.prepare(*codec)
    assert "bad 1: failed, such as g.png" in capsys.readouterr().out
    flag.unlink()
    old = project.files()
    project.prepare(*codec)
    assert project.files() == old
    project.prepare(*codec, "--retry-failed")
    assert "g.png" in {row[1] for row in rows(project.manifest())}


# --- Datasets of earlier versions ---


def to_earlier_version(project: Project) -> None:
    """Rewrites the files of a dataset as earlier versions did."""
    out = project.out
    files = pq.read_table(out / "files.parquet")
    files = files.select(["name", "num_bytes", "caption"])
    pq.write_table(files, out / "files.parquet")
    (generation,), shards = read_generations(out, PATCH)
    content = {
        "format": 2,
        "fingerprint": generation.fingerprint,
        "shards": [dataclasses.asdict(shard) for shard in shards],
    }
    _rewrite(out / FILE_NAME, b"jaxload", content)
    claim = json.loads((out / "preparation.json").read_text())
    claim |= {"media": generation.fingerprint["media"], "version": 1}
    (out / "preparation.json").write_text(json.dumps(claim))
    for path in (out / "parts").glob("scan-*.parquet"):
        content = json.loads(pq.read_schema(path).metadata[b"part"])
        del content["digests"]
        _rewrite(path, b"part", content)
    for path in (out / "parts").glob("part-*.parquet"):
        content = json.loads(pq.read_schema(path).metadata[b"part"])
        for clip in content["left_out"]:
            source, start = clip.pop("source"), clip.pop("start")
            clip["id"] = source if start is None else f"{source}@{start}"
        _rewrite(path, b"part", content)


def _rewrite(path: Path, key: bytes, content: dict) -> None:
    table = pq.read_table(path)
    if "start" in table.schema.names:
        table = table.drop_columns(["start"])
    metadata = {key: json.dumps(content).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_a_dataset_of_an_earlier_version_is_not_updated(project: Project):
    to_earlier_version(project)
    before = project.files()
    message = r"expected records of tokens of patch 1x2x2, got latents; convert it"
    with pytest.raises(InputError, match=message):
        project.prepare()
    assert project.files() == before


# --- Refused ---


def test_a_file_called_as_a_clip_of_another_is_refused_before_it_is_encoded(
    project: Project,
):
    """The video e.mp4 has the clips e.mp4@0 and e.mp4@17."""
    old = project.files()
    project.draw("g.png", seed=91)
    (project.media / "g.png").rename(project.media / "e.mp4@17")
    message = r"media files 'e.mp4' and 'e.mp4@17': both have .* 'e.mp4@17'.*; rename"
    with pytest.raises(InputError, match=message) as error:
        project.prepare()
    assert "\n" not in str(error.value)
    assert project.files() == old
    # No clip is called so: the name is one like any other.
    (project.media / "e.mp4@17").rename(project.media / "e.mp4@18")
    project.prepare()
    assert ("e.mp4@18", "e.mp4@18", 0, "") in rows(project.manifest())
    assert ("e.mp4@17", "e.mp4", 17, "") in rows(project.manifest())


def test_a_lost_shard_is_made_again_unless_its_media_changed(project: Project):
    old = project.files()
    project.draw("a.png", seed=90)
    project.draw("g.png", seed=91)
    project.prepare()
    sources = project.manifest().read_column("source").to_pylist()
    shards = project.manifest().shards
    lost = project.out / shards[sources.index("b.png")].name
    lost.unlink()
    project.prepare()
    assert lost.read_bytes() == old[lost.name]
    lost = project.out / shards[sources.index("a.png")].name
    lost.unlink()
    message = r"shard-00000.*missing or damaged, and cannot be made again because its"
    with pytest.raises(InputError, match=message):
        project.prepare()


def test_a_lost_shard_that_was_made_again_too_short_is_made_again(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = Project(tmp_path / "project")
    shutil.copytree(finished.media, project.media)
    flag = tmp_path / "flag"
    monkeypatch.setenv("JAXLOAD_TEST_FLAG", str(flag))
    options = ("--codec", "tests.media.codecs:FailsWhileFlagged")
    project.prepare(*options)
    before = project.files()
    (project.out / project.manifest().shards[0].name).unlink()
    flag.touch()
    with pytest.raises(InputError, match=r"cannot be made again with its 1 records"):
        project.prepare(*options)
    flag.unlink()
    project.prepare(*options)
    assert project.files() == before


def test_a_lost_shard_is_made_again_without_a_file_that_gave_no_record(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(history, "MIN_PARTS", 1)
    project = Project(tmp_path / "project")
    shutil.copytree(finished.media, project.media)
    project.prepare()
    before = project.files()
    (shard,) = project.manifest().shards
    (project.media / "bad.png").unlink()
    project.prepare()
    (project.out / shard.name).unlink()
    project.prepare()
    assert project.files()[shard.name] == before[shard.name]
    (project.media / "a.png").unlink()
    project.prepare()
    (project.out / shard.name).unlink()
    with pytest.raises(InputError, match="its media have changed since"):
        project.prepare()


def test_a_damaged_manifest_can_be_made_again(
    project: Project, capsys: pytest.CaptureFixture
):
    before = rows(project.manifest())
    manifest = project.out / FILE_NAME
    manifest.write_bytes(manifest.read_bytes()[:-100])
    with pytest.raises(InputError, match="or remove it and prepare the media into"):
        project.prepare()
    manifest.unlink()
    capsys.readouterr()
    project.prepare()
    assert rows(project.manifest()) == before
    assert "encoding" not in capsys.readouterr().out


def test_machines_whose_time_stamps_differ_prepare_together(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    """Another machine records its own time stamps while this one encodes."""
    project.draw("g.png", seed=91)
    write = prepared.write_scan_table

    def write_later(out: Path, then: history.History) -> None:
        write(out, then)
        row = FileChange(change=Change.SEEN, file=then.files["a.png"].file)
        history.write_update(out, len(then.updates), [row])

    monkeypatch.setattr(prepared, "write_scan_table", write_later)
    project.prepare()
    assert "g.png" in {row[0] for row in rows(project.manifest())}


def test_files_to_try_again_are_not_lost_to_another_update(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    """Another process writes its update first."""
    write, others = changes.write_update, iter([[]])

    def write_second(out: Path, index: int, update: list[FileChange]) -> None:
        write(out, index, next(others, update))

    monkeypatch.setattr(changes, "write_update", write_second)
    project.prepare("--retry-failed")
    last = history.read_history(project.out).updates[-1]
    assert [(row.file.name, row.change) for row in last] == [
        ("bad.png", Change.RETRIED)
    ]


def test_lost_lists_of_media_are_refused(project: Project):
    project.draw("g.png", seed=91)
    project.prepare()
    (project.out / "files-00001.parquet").unlink()
    with pytest.raises(InputError, match=r"of 2 preparations .*, got 1; restore them"):
        project.prepare()
    assert not (project.out / "files-00001.parquet").exists()


def test_a_damaged_list_of_media_is_one_line(project: Project):
    (project.out / "files.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"files.parquet: not a list of media files"):
        project.prepare()
