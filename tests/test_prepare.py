"""Tests of python -m jaxload.prepare."""

import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload import plan as plan_command
from jaxload import prepare as command
from jaxload.codecs.haar import HaarCodec
from jaxload.codecs.hashed_ngrams import HashedNgramEncoder
from jaxload.console import Console
from jaxload.data.manifest import read_manifest
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.media.encode_part import EncodePart
from jaxload.planning.survey import survey_manifest
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape
from jaxload.shapes.size_cover import cover_sizes
from jaxload.shapes.token_order import to_tokens
from tests.media.media_files import moving_pattern, write_video

PATCH = (1, 2, 2)
CONFIG = ("--set", "shapes.max_frames=17", "--set", "shapes.max_sizes=6")


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a small folder of clips, images, captions and invalid files."""
    folder = tmp_path_factory.mktemp("prepare") / "media"
    (folder / "more").mkdir(parents=True)
    for i, (frames, height, width, fps) in enumerate(
        [(17, 64, 64, 16), (50, 64, 64, 30), (9, 64, 96, 12), (40, 64, 64, 16)]
    ):
        name = folder / f"clip{i}.mp4"
        write_video(name, moving_pattern(frames, height, width), fps=fps)
        name.with_suffix(".txt").write_text(f"pattern number {i}")
    for i in range(6):
        rgb = moving_pattern(8, 64, 64)[i]
        Image.fromarray(rgb).save(folder / "more" / f"picture {i} \u00e9.png")
    (folder / "more" / "metadata.csv").write_text(
        "file_name,caption\n"
        + "".join(f'picture {i} \u00e9.png,"a picture, {i}"\n' for i in range(5))
        + "nowhere.png,nothing\n"
    )
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "text.mp4").write_text("this is no video " * 100)
    Image.fromarray(moving_pattern(1, 64, 640)[0]).save(folder / "wide.png")
    return folder


def prepare(media: Path, out: Path, *more: str) -> int:
    options = ["--media", str(media), "--out", str(out), "--max-bad-share", "0.3"]
    return command.main([*options, *CONFIG, "--workers", "0", *more])


@pytest.fixture(scope="module")
def prepared(media: Path) -> Path:
    out = media.parent / "prepared"
    assert prepare(media, out) == 0
    return out


def shards(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("shard-*"))}


def report(out: Path) -> list[dict[str, str]]:
    with (out / "report.csv").open() as file:
        return list(csv.DictReader(file))


def manifest_bytes(out: Path) -> bytes:
    return (out / "manifest.parquet").read_bytes()


# --- Results ---


def test_clips_are_cut_and_captioned(prepared: Path):
    manifest = read_manifest(prepared)
    columns = ("id", "source", "caption", "text_tokens", "frames", "height", "width")
    values = [manifest.read_column(name).to_pylist() for name in columns]
    rows = list(zip(*values, strict=True))
    # 50 frames at 30 fps are 27 at 16: a clip of 17 and a rest of 10, cut to 9.
    assert rows[:6] == [
        ("clip0.mp4", "clip0.mp4", "pattern number 0", 3, 5, 8, 8),
        ("clip1.mp4@0", "clip1.mp4", "pattern number 1", 3, 5, 8, 8),
        ("clip1.mp4@17", "clip1.mp4", "pattern number 1", 3, 3, 8, 8),
        ("clip2.mp4", "clip2.mp4", "pattern number 2", 3, 3, 8, 12),
        ("clip3.mp4@0", "clip3.mp4", "pattern number 3", 3, 5, 8, 8),
        ("clip3.mp4@17", "clip3.mp4", "pattern number 3", 3, 5, 8, 8),
    ]
    images = [row for row in rows if row[0].startswith("more/")]
    assert [row[4:] for row in images] == [(1, 8, 8)] * 6
    assert [row[2] for row in images] == [*(f"a picture, {i}" for i in range(5)), ""]


def test_records_hold_what_the_frames_show(prepared: Path, media: Path):
    manifest = read_manifest(prepared)
    ids = manifest.read_column("id").to_pylist()
    name = "more/picture 3 \u00e9.png"
    record = decode_record(open_records(manifest)[ids.index(name)])
    video = np.array(Image.open(media / name))[None]
    tokens = to_tokens(HaarCodec().encode(video), PATCH)
    np.testing.assert_array_equal(record.tokens, tokens.astype(record.tokens.dtype))
    text = HashedNgramEncoder(64).encode("a picture, 3")
    np.testing.assert_array_equal(record.text, text.astype(record.text.dtype))


def test_what_is_not_kept_is_told_with_its_name(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    assert prepare(media, tmp_path / "out") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "kept 13 clips from 10 of 13 files" in shown
    assert "bad 1: empty file, such as empty.mp4" in shown
    assert "bad 1: not an image or video, such as text.mp4" in shown
    assert "left out 1: aspect that no shape has, such as wide.png" in shown
    # Bad files need no caption.
    assert "noted 2: no caption, such as more/picture 5 \u00e9.png, wide.png" in shown
    assert "noted 1: caption with no file" in shown
    assert "8x8 64x64 1 to 17 16 to 80 12 88" in shown
    rows = {(row["outcome"], row["name"]): row for row in report(tmp_path / "out")}
    assert rows["bad", "empty.mp4"]["reason"] == "empty file"
    assert rows["left out", "wide.png"]["detail"] == "1x64x640"
    with Image.open(tmp_path / "out" / "preview.png") as preview:
        assert min(preview.size) > 200


def test_links_are_followed_if_the_config_says_so(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    folder = tmp_path / "media"
    folder.mkdir()
    for name in ("clip0.mp4", "clip2.mp4"):
        (folder / name).symlink_to(media / name)
    with pytest.raises(InputError, match=r"link out of .*see data.follow_links: 2\)"):
        prepare(folder, tmp_path / "out")
    assert len(report(tmp_path / "out")) == 2
    again = ("--set", "data.follow_links=True")
    assert prepare(folder, tmp_path / "out2", *again) == 0
    assert "kept 2 clips from 2 of 2 files" in capsys.readouterr().out


def test_a_video_too_short_for_a_clip_is_reported(tmp_path: Path):
    (tmp_path / "media").mkdir()
    for i, picture in enumerate(moving_pattern(20, 64, 64)):
        Image.fromarray(picture).save(tmp_path / "media" / f"{i}.png")
    write_video(tmp_path / "media" / "clip.mp4", moving_pattern(4, 64, 64), fps=16)
    assert prepare(tmp_path / "media", tmp_path / "out") == 0
    rows = [row for row in report(tmp_path / "out") if row["outcome"] == "left out"]
    assert [(row["name"], row["reason"]) for row in rows] == [
        ("clip.mp4", "too short for a clip of several frames")
    ]
    ids = read_manifest(tmp_path / "out").read_column("id").to_pylist()
    assert "clip.mp4" not in ids


def test_clips_of_many_lengths_need_one_size(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    (tmp_path / "media").mkdir()
    for i, frames in enumerate([5, 8, 9, 13, 17, 17, 17]):
        rgb = moving_pattern(frames, 64, 96, seed=i)
        write_video(tmp_path / "media" / f"{i}.mp4", rgb, fps=16)
    assert prepare(tmp_path / "media", tmp_path / "out") == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest.fingerprint["sizes"] == "8x12"
    assert manifest.read_column("frames").to_pylist() == [2, 2, 3, 4, 5, 5, 5]
    shown = " ".join(capsys.readouterr().out.split())
    assert "size pixels frames tokens clips all frames" in shown
    assert "8x12 64x96 5 to 17 48 to 120 7 83" in shown
    assert "86 decoded, 83 kept; dropped 0 to reach the model's frame rate, 3" in shown
    # Three of the four lengths.
    with Image.open(tmp_path / "out" / "preview.png") as preview:
        assert preview.size == (600, 390)


def test_a_plan_on_the_scans_counts_the_clips_of_the_dataset(
    media: Path, prepared: Path
):
    """Preparing and planning choose the same sizes, and so the same shapes."""
    rules = ShapeRules(max_frames=17, max_sizes=6)
    survey = survey_manifest(
        prepared / "media.parquet",
        rules,
        DEFAULT,
        max_bad_share=0.0,
        console=Console(quiet=True),
    )
    chosen, manifest = cover_sizes(survey.clips, rules=rules), read_manifest(prepared)
    sizes = ", ".join(f"{height}x{width}" for height, width in chosen.sizes)
    assert manifest.fingerprint["sizes"] == sizes
    planned = dict(zip(chosen.cover.shapes, chosen.cover.num_samples, strict=True))
    assert planned == {s: len(rows) for s, rows in manifest.rows_by_shape.items()}


def test_the_sizes_of_a_plan_are_kept(media: Path, prepared: Path, tmp_path: Path):
    plan = tmp_path / "plan.json"
    options = ["--manifest", str(prepared / "media.parquet"), "--out", str(plan)]
    overrides = ["--set", "shapes.max_frames=5", "--set", "balance.max_buckets=3"]
    assert plan_command.main([*options, *overrides, "--replicas", "1"]) == 0
    assert prepare(media, tmp_path / "out", "--plan", str(plan)) == 0
    # The plan has its own rules: clips of 5 frames, although this config takes 17.
    assert set(read_manifest(tmp_path / "out").rows_by_shape) == {
        Shape(1, 8, 8),
        Shape(2, 8, 8),
        Shape(2, 8, 12),
    }


# --- Repeated runs and several machines ---


def test_workers_make_the_same_bytes(media: Path, prepared: Path, tmp_path: Path):
    assert prepare(media, tmp_path / "out", "--workers", "2") == 0
    assert shards(tmp_path / "out") == shards(prepared)
    assert manifest_bytes(tmp_path / "out") == manifest_bytes(prepared)


def test_a_finished_data_set_is_left_as_it_is(media: Path, prepared: Path):
    before = {p.name: p.stat().st_mtime_ns for p in prepared.glob("shard-*")}
    assert before
    assert prepare(media, prepared) == 0
    assert {p.name: p.stat().st_mtime_ns for p in prepared.glob("shard-*")} == before


def test_a_lost_shard_is_made_again(media: Path, prepared: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert prepare(media, out) == 0
    (out / "shard-00001.array_record").unlink()
    with (out / "shard-00002.array_record").open("r+b") as shard:
        shard.truncate(1_000)
    assert prepare(media, out) == 0
    assert shards(out) == shards(prepared)


def test_machines_share_the_work(
    media: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    out = tmp_path / "out"
    assert prepare(media, out, "--shard", "1/2") == 0
    assert (
        "share 1/2 is done, other shares are not; run this" in capsys.readouterr().out
    )
    # This one finds all scans, and encodes its own share.
    assert prepare(media, out, "--shard", "0/2") == 0
    assert not (out / "manifest.parquet").exists()
    assert prepare(media, out, "--shard", "1/2") == 0
    assert shards(out) == shards(prepared)
    assert manifest_bytes(out) == manifest_bytes(prepared)


def test_with_a_plan_machines_share_the_work_in_one_round(
    media: Path, prepared: Path, tmp_path: Path
):
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    options = ["--manifest", str(prepared / "media.parquet"), "--out", str(plan)]
    assert plan_command.main([*options, *CONFIG]) == 0
    for share in ("1/3", "0/3", "2/3"):
        assert not (out / "manifest.parquet").exists()
        assert prepare(media, out, "--plan", str(plan), "--shard", share) == 0
    assert len(read_manifest(out)) == len(read_manifest(prepared))


def test_of_two_shares_at_once_the_one_that_ends_last_finishes(
    media: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Share 1 starts after share 0 has scanned, and ends before share 0 encodes."""
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    options = ["--manifest", str(prepared / "media.parquet"), "--out", str(plan)]
    assert plan_command.main([*options, *CONFIG]) == 0
    make_runner, nested = command._runner, []

    def runner(args):
        inner = make_runner(args)

        def run(parts, **hooks) -> None:
            if isinstance(parts[0], EncodePart) and not nested:
                nested.append("1/2")
                assert prepare(media, out, "--plan", str(plan), "--shard", "1/2") == 0
                assert not (out / "manifest.parquet").exists()
            inner(parts, **hooks)

        return run

    monkeypatch.setattr(command, "_runner", runner)
    assert prepare(media, out, "--plan", str(plan), "--shard", "0/2") == 0
    assert nested
    assert len(read_manifest(out)) == len(read_manifest(prepared))


def command_line(media: Path, out: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "jaxload.prepare"]
    options = ["--media", str(media), "--out", str(out), "--max-bad-share", "0.3"]
    return [*program, *options, *CONFIG, *more]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("workers", "targets"), [("0", (1, 9, 13, 14, 20, 25)), ("2", (4, 14, 22))]
)
def test_killed_at_any_time_it_ends_with_the_same_bytes(
    media: Path,
    prepared: Path,
    tmp_path: Path,
    workers: str,
    targets: tuple[int, ...],
):
    """Kills the command several times, each time after more files were written."""
    out, kills = tmp_path / "out", 0
    arguments = command_line(media, out, "--workers", workers)
    for target in targets:
        process = subprocess.Popen(
            arguments, stdout=subprocess.DEVNULL, start_new_session=True
        )
        while process.poll() is None and num_done(out) < target:
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert shards(out) == shards(prepared)
    assert manifest_bytes(out) == manifest_bytes(prepared)
    assert not list(out.glob(".*")), "nothing half written is left"


def num_done(out: Path) -> int:
    return len(list((out / "parts").glob("*.parquet"))) if out.exists() else 0


@pytest.mark.slow
def test_two_at_once_make_the_same_bytes(media: Path, prepared: Path, tmp_path: Path):
    arguments = command_line(media, tmp_path / "out", "--workers", "0")
    both = [
        subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert shards(tmp_path / "out") == shards(prepared)
    assert manifest_bytes(tmp_path / "out") == manifest_bytes(prepared)


@pytest.mark.slow
def test_on_ray_it_makes_the_same_bytes(media: Path, prepared: Path, tmp_path: Path):
    arguments = command_line(media, tmp_path / "out", "--ray")
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    result = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert "kept 13 clips from 10 of 13 files" in result.stdout
    assert shards(tmp_path / "out") == shards(prepared)


# --- Refused inputs ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--set", "shapes.max_frames=9"], r"was begun with rules .*'max_frames': 17"),
        (["--set", "shapes.max_sizes=3"], r"begun with rules .*'max_sizes': 6"),
        (["--set", "model.text_dim=32"], r"begun with text_dim 64, got 32"),
        (["--codec", "tests.media.codecs:Inverted"], r"begun with codec 'haar'"),
    ],
)
def test_another_preparation_over_it_is_refused(
    media: Path, prepared: Path, change: list[str], message: str
):
    before = manifest_bytes(prepared)
    with pytest.raises(InputError, match=message):
        prepare(media, prepared, *change)
    assert manifest_bytes(prepared) == before


def test_another_version_over_it_is_refused(
    media: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jaxload.media.preparation._VERSION", 4)
    with pytest.raises(InputError, match=r"begun with version 3, got 4"):
        prepare(media, prepared)


def test_too_many_bad_files_stop_it_and_lose_nothing(media: Path, tmp_path: Path):
    out = tmp_path / "out"
    with pytest.raises(InputError) as error:
        prepare(media, out, "--max-bad-share", "0.05")
    assert str(error.value) == (
        "2 of 13 files are bad (empty file: 1, not an image or video: 1), such as "
        "empty.mp4: empty file; expected at most 5%; fix the files that "
        f"{out}/report.csv lists, or raise --max-bad-share"
    )
    assert {(row["outcome"], row["name"]) for row in report(out)} == {
        ("bad", "empty.mp4"),
        ("bad", "text.mp4"),
        ("noted", "more/nowhere.png"),
        ("noted", "more/picture 5 \u00e9.png"),
        ("noted", "wide.png"),
    }
    done = num_done(out)
    assert done > 0
    assert prepare(media, out) == 0
    assert num_done(out) > done


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(
    media: Path, prepared: Path, tmp_path: Path
):
    """Limits the size of files, so that scans can be written but not shards."""
    program = (
        "import resource, signal, sys; from jaxload import command, prepare;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000));"
        "command.run('jaxload.prepare', prepare.main)"
    )
    arguments = command_line(media, tmp_path / "out", "--workers", "0")[3:]
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert "out: a shard cannot be written (write() failed: File too large" in line
    assert prepare(media, tmp_path / "out") == 0
    assert shards(tmp_path / "out") == shards(prepared)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"--media: expected a folder"),
        (["--media", "none"], r"none.*no such|none: expected"),
        (["--media", "{media}", "--out", "{media}/x"], r"outside the media folder"),
        (["--media", "{media}", "--shard", "2/2"], r"--shard 2/2: expected I/N"),
        (["--media", "{media}", "--shard", "one"], r"--shard one: expected I/N"),
        (
            ["--media", "{media}", "--workers", "-1"],
            r"--workers -1: expected 0",
        ),
        (["--media", "{media}", "--max-bad-share", "2"], r"share 2.0: expected 0.0"),
        (["--media", "{media}", "--max-bad-share", "-1"], r"share -1.0: expected 0.0"),
        (["--media", "{media}", "--max-bad-share", "nan"], r"share nan: expected 0.0"),
        (["--media", "{media}", "--codec", "wan"], r"codec 'wan': expected haar or"),
        (
            ["--media", "{media}", "--codec", "no.such:x"],
            r"cannot be loaded \(ModuleNotFound",
        ),
        (["--media", "{media}", "--plan", "none.json"], r"none.json: cannot be read"),
        (
            ["--media", "{media}", "--text-encoder", "tests.media.codecs:Lengths"],
            r"gives embeddings of width 1, expected 64; set model.text_dim=1",
        ),
        (
            [
                *("--media", "{media}", "--set", "model.text_dim=1"),
                *("--text-encoder", "tests.media.codecs:NoTokens"),
            ],
            r"lengths: max_tokens=0: expected a whole number of at least 1; correct",
        ),
    ],
)
def test_wrong_arguments_are_one_line(
    media: Path, tmp_path: Path, arguments: list[str], message: str
):
    arguments = [argument.format(media=media) for argument in arguments]
    if "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "out")]
    with pytest.raises(InputError, match=message) as error:
        command.main(arguments)
    assert "\n" not in str(error.value)


def test_names_with_brackets_and_dollars_are_names(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    folder = tmp_path / "x[" / "media"
    folder.mkdir(parents=True)
    picture = (media / "more/picture 1 \u00e9.png").read_bytes()
    for name in ("vid [dQw4].png", "b][/b].png", "p$a^$b.png", "a\nb.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(picture)
    (folder / "bad [x].png").write_bytes(b"")
    assert prepare(folder, tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "empty file, such as bad [x].png" in shown
    assert "a\\nb.png, b][/b].png" in shown
    assert (tmp_path / "out" / "preview.png").exists()


def test_nothing_but_broken_links_is_one_line(tmp_path: Path):
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.mp4").symlink_to("none")
    message = r"none of its 1 files can be used \(broken link: 1\); fix the files that"
    with pytest.raises(InputError, match=message):
        prepare(tmp_path / "media", tmp_path / "out", "--max-bad-share", "1")
    assert [row["name"] for row in report(tmp_path / "out")] == ["a.mp4"]


# --- Plugins ---


@pytest.mark.slow
def test_workers_do_not_import_jax(media: Path, tmp_path: Path):
    """Workers import the command's module, so it must not import JAX for all of them.

    JAX, Flax and Optax take seconds and hundreds of megabytes in each process.
    """
    (tmp_path / "modules").mkdir()
    codec = ("--codec", "tests.media.codecs:RecordsModules", "--workers", "1")
    result = subprocess.run(
        command_line(media, tmp_path / "out", *codec),
        env={**os.environ, "JAXLOAD_TEST_MODULES": str(tmp_path / "modules")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (path,) = (tmp_path / "modules").iterdir()
    modules = path.read_text().splitlines()
    assert "jaxload.media.encode_part" in modules
    assert not {"jax", "flax", "optax", "grain", "matplotlib"} & set(modules)


def test_codecs_and_text_encoders_plug_in_by_name(media: Path, tmp_path: Path):
    out = tmp_path / "out"
    plugs = ["--codec", "tests.media.codecs:Inverted", "--set", "model.text_dim=1"]
    assert (
        prepare(media, out, *plugs, "--text-encoder", "tests.media.codecs:Lengths") == 0
    )
    manifest = read_manifest(out)
    assert manifest.fingerprint["codec"] == "tests.media.codecs:Inverted"
    ids = manifest.read_column("id").to_pylist()
    name = "more/picture 3 \u00e9.png"
    record = decode_record(open_records(manifest)[ids.index(name)])
    assert record.text.tolist() == [[len("a picture, 3")]]
    video = np.array(Image.open(media / name))[None]
    tokens = to_tokens(HaarCodec().encode(video), PATCH)
    np.testing.assert_allclose(record.tokens.astype(float), -tokens, atol=0.1)


def test_captions_are_cut_at_the_limit_of_the_text_encoder(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    folder = tmp_path / "media"
    shutil.copytree(media / "more", folder)
    for i, text in enumerate(["a cat " * 200_000, " \n", "a cat"]):
        (folder / f"picture {i} \u00e9.txt").write_text(text)
    for name, length in {"Lengths": 8_191, "TwoTokens": 31}.items():
        options = ["--text-encoder", f"tests.media.codecs:{name}"]
        out = tmp_path / name
        assert prepare(folder, out, *options, "--set", "model.text_dim=1") == 0
        manifest = read_manifest(out)
        captions = manifest.read_column("caption").to_pylist()[:3]
        assert captions == [("a cat " * 2_000)[:length], "", "a cat"]
        record = decode_record(open_records(manifest)[0])
        assert record.text.astype(float) == pytest.approx(length, rel=0.01)
        shown = capsys.readouterr().out
        assert "noted 1: caption cut at the text encoder's limit, such as pic" in shown
        assert "noted 1: empty caption, such as picture 1 \u00e9.png" in shown


def test_a_codec_that_fails_is_counted(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    codec = "tests.media.codecs:FailsOnWide"
    assert prepare(media, tmp_path / "out", "--codec", codec) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "bad 1: failed, such as clip2.mp4" in shown
    report = (tmp_path / "out" / "report.csv").read_text()
    assert "clip2.mp4,failed,RuntimeError: too wide for me" in report


def test_too_many_failures_of_a_codec_leave_no_dataset(media: Path, tmp_path: Path):
    codec = ["--codec", "tests.media.codecs:FailsOnWide", "--max-bad-share", "0.16"]
    message = r"3 of 13 files are bad \(.*failed: 1.*expected at most 16%"
    with pytest.raises(InputError, match=message):
        prepare(media, tmp_path / "out", *codec)
    assert not (tmp_path / "out" / "manifest.parquet").exists()
    rows = {(row["outcome"], row["name"]): row for row in report(tmp_path / "out")}
    assert rows["bad", "clip2.mp4"]["detail"] == "RuntimeError: too wide for me"
    assert ("left out", "wide.png") in rows


def test_all_counts_have_the_same_total(
    media: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """A file that cannot be listed counts like one that cannot be decoded."""
    folder = tmp_path / "media"
    shutil.copytree(media / "more", folder)
    (folder / "lost.mp4").symlink_to("nowhere")
    (folder / "empty.mp4").touch()
    with pytest.raises(InputError, match=r"2 of 8 files are bad"):
        prepare(folder, tmp_path / "out", "--max-bad-share", "0.1")
    assert prepare(folder, tmp_path / "out") == 0
    assert "from 6 of 8 files" in capsys.readouterr().out


def test_what_failed_is_tried_again(
    media: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flag = tmp_path / "flag"
    flag.touch()
    monkeypatch.setenv("JAXLOAD_TEST_FLAG", str(flag))
    codec = ("--codec", "tests.media.codecs:FailsWhileFlagged", "--max-bad-share", "1")
    with pytest.raises(InputError, match=r"gave a clip \(failed: "):
        prepare(media, tmp_path / "out", *codec)
    flag.unlink()
    assert prepare(media, tmp_path / "out", *codec) == 0
    assert shards(tmp_path / "out") == shards(prepared)


@pytest.mark.parametrize(
    ("plugs", "message"),
    [
        (["--codec", "tests.media.codecs:NotFinite"], "not finite in bfloat16"),
        (["--codec", "tests.media.codecs:FewChannels"], r"8\), expected \(.*16\)"),
        (
            ["--text-encoder", "tests.media.codecs:WrongText"],
            r"returned \(3,\), expected \(3, 1\)",
        ),
    ],
)
def test_invalid_results_of_plugins_are_refused(
    media: Path, tmp_path: Path, plugs: list[str], message: str
):
    width = ["--set", "model.text_dim=1"] if "--text-encoder" in plugs else []
    with pytest.raises(InputError, match=message):
        prepare(media, tmp_path / "out", *plugs, *width)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tests.media.codecs:Nameless",
            r"Nameless lacks channels, decode, encode, name",
        ),
        ("tests.media.codecs:Demanding", r"cannot be loaded \(TypeError: "),
        ("tests.media.codecs:none", r"cannot be loaded \(AttributeError: "),
        (":x", r"cannot be loaded \(ValueError: "),
    ],
)
def test_an_invalid_plugin_is_one_line(
    media: Path, tmp_path: Path, name: str, message: str
):
    with pytest.raises(InputError, match=message):
        prepare(media, tmp_path / "out", "--codec", name)


@pytest.mark.slow
def test_a_codec_that_dies_at_its_start_ends_it(media: Path, tmp_path: Path):
    """The second run finds the marker that the first one left behind."""
    out = tmp_path / "out"
    codec = ("--codec", "tests.media.codecs:DiesAtStart", "--workers", "1")
    for _ in range(2):
        with pytest.raises(InputError, match=r"die while they read no file"):
            prepare(media, out, *codec)
        for part in range(3):
            host = socket.gethostname()
            marker = out / "parts" / f"part-{part:05d}.{host}.current"
            marker.write_text("clip0.mp4")


@pytest.mark.slow
def test_a_file_that_kills_its_worker_twice_is_left_alone(
    media: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    codec = "tests.media.codecs:DiesOnWide"
    arguments = ["--codec", codec, "--workers", "2"]
    assert prepare(media, tmp_path / "out", *arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("a worker died (killed by SIGKILL) at clip2.mp4") == 2
    assert "bad 1: its worker died twice, such as clip2.mp4" in shown
    ids = read_manifest(tmp_path / "out").read_column("id").to_pylist()
    expected = read_manifest(prepared).read_column("id").to_pylist()
    assert ids == [name for name in expected if name != "clip2.mp4"]
