"""Tests `python -m jaxload.prepare` on a folder of many file types and faults."""

import csv
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload import prepare as command
from jaxload.codecs.haar import HaarCodec
from jaxload.data.manifest import Manifest, read_manifest
from jaxload.data.source import open_records
from tests.data.datasets import read_latent
from tests.media.media_files import moving_pattern, plain_frames, write_video
from tests.media.real_clips import CAPTIONS, copy_clips

RED = (200, 30, 30)
UNICODE = "\u00fcn\u00efc\u00f6d\u00e9 \u4e2d\u6587 \U0001f3ac.mp4"


def red(frames: int = 9, height: int = 64, width: int = 96) -> np.ndarray:
    return plain_frames([RED] * frames, height, width)


def write_media(folder: Path) -> None:
    """Writes files whose names state their peculiarity."""
    folder.mkdir()

    def save(name: str, picture: Image.Image, **options) -> None:
        picture.save(folder / name, **options)

    plain = Image.fromarray(red(1)[0])
    # --- Good ones ---
    save("image.png", plain)
    save("grey.png", plain.convert("L"))
    save("sixteen.png", Image.fromarray(np.full((64, 96), 40_000, np.uint16)))
    save("cmyk.jpg", plain.convert("CMYK"))
    save("alpha.png", Image.new("RGBA", (96, 64), (0, 0, 0, 0)))
    save("odd.png", plain.resize((97, 65)))
    frames = [Image.fromarray(frame) for frame in moving_pattern(9, 64, 96)]
    save("moving.gif", frames[0], save_all=True, append_images=frames[1:], duration=70)
    save("one.gif", frames[0])
    write_video(folder / "video.mp4", red(), fps=16)
    write_video(folder / "single.mp4", red(1), fps=16)
    write_video(folder / UNICODE, red())
    times = [0, 0.1, 0.15, 0.3, 0.31, 0.5, 0.62, 0.75, 0.9]
    write_video(folder / "varying.mkv", moving_pattern(9, 64, 96), times=times)
    write_video(folder / "portrait.mp4", moving_pattern(9, 96, 64), fps=16, rotation=90)
    ratio = Fraction(3, 2)
    write_video(folder / "narrow.mp4", red(width=64), fps=16, sample_aspect_ratio=ratio)
    # --- Names that mislead or meet ---
    (folder / "really_mp4.jpg").write_bytes((folder / "video.mp4").read_bytes())
    (folder / "really_png.mp4").write_bytes((folder / "image.png").read_bytes())
    (folder / "same.png").write_bytes((folder / "image.png").read_bytes())
    (folder / "same.mp4").write_bytes((folder / "video.mp4").read_bytes())
    (folder / "same.txt").write_text("one caption for two")
    (folder / "nobody.txt").write_text("a caption of nothing")
    # --- Bad ones ---
    (folder / "empty.png").write_bytes(b"")
    (folder / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(20_000))
    whole = (folder / "image.png").read_bytes()
    (folder / "half.png").write_bytes(whole[: len(whole) // 2])
    write_video(folder / "no_index.mp4", moving_pattern(30, 64, 96), index_first=False)
    content = (folder / "no_index.mp4").read_bytes()
    (folder / "no_index.mp4").write_bytes(content[: len(content) // 2])
    # --- Not handled, but used ---
    write_video(folder / "hdr.mp4", red(), fps=16, colors={"color_trc": 16})
    interlaced = {"x264-params": "interlaced=1"}
    write_video(folder / "fields.mp4", red(), fps=16, options=interlaced)
    write_video(folder / "half.mkv", moving_pattern(60, 64, 96), fps=16)
    content = (folder / "half.mkv").read_bytes()
    (folder / "half.mkv").write_bytes(content[: len(content) * 2 // 3])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("everything")
    write_media(folder / "media")
    options = ["--media", str(folder / "media"), "--out", str(folder / "out")]
    assert command.main([*options, "--max-bad-share", "0.5", "--workers", "0"]) == 0
    return read_manifest(folder / "out")


@pytest.fixture(scope="module")
def report(prepared: Manifest) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {}
    with (prepared.directory / "report.csv").open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["name"], set()).add((row["outcome"], row["reason"]))
    return found


def clips(manifest: Manifest, name: str) -> list[np.ndarray]:
    """Returns the clips of a file, decoded from their records."""
    records, codec = open_records(manifest), HaarCodec()
    sources = manifest.read_column("source").to_pylist()
    shapes, codes = manifest.shape_codes
    return [
        codec.decode(read_latent(records[row], shapes[codes[row]]).astype(np.float32))
        for row, source in enumerate(sources)
        if source == name
    ]


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("image.png", 1),
        ("cmyk.jpg", 1),
        ("odd.png", 1),
        ("video.mp4", 9),
        ("single.mp4", 1),
        ("fields.mp4", 9),
        (UNICODE, 5),  # 25 fps: 9 frames are 6 at 16, cut to 5.
        ("narrow.mp4", 9),
        ("really_mp4.jpg", 9),
        ("really_png.mp4", 1),
        ("same.png", 1),
        ("same.mp4", 9),
    ],
)
def test_good_media_look_as_they_should(prepared: Manifest, name: str, frames: int):
    (clip,) = clips(prepared, name)
    assert clip.shape == (frames, 64, 96, 3)
    assert np.abs(clip.astype(int) - RED).max() <= 12


@pytest.mark.parametrize(
    ("name", "level"), [("sixteen.png", 156), ("alpha.png", 255), ("grey.png", 81)]
)
def test_brightness_is_that_of_the_file(prepared: Manifest, name: str, level: int):
    (clip,) = clips(prepared, name)
    assert np.abs(clip.astype(int) - level).max() <= 3


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("moving.gif", (9, 64, 96, 3)),
        ("one.gif", (1, 64, 96, 3)),
        ("varying.mkv", (9, 64, 96, 3)),
        ("portrait.mp4", (9, 64, 96, 3)),
    ],
)
def test_sizes_are_as_displayed(prepared: Manifest, name: str, shape):
    (clip,) = clips(prepared, name)
    assert clip.shape == shape
    assert clip.std() > 10


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("empty.png", ("bad", "empty file")),
        ("noise.mp4", ("bad", "not an image or video")),
        ("half.png", ("bad", "damaged image")),
        ("no_index.mp4", ("bad", "damaged video")),
        ("half.mkv", ("noted", "damaged, used up to the damage")),
        ("hdr.mp4", ("noted", "HDR, not tone-mapped")),
        ("fields.mp4", ("noted", "interlaced, not deinterlaced")),
        ("image.png", ("noted", "no caption")),
        ("nobody.txt", ("noted", "caption with no file")),
        ("same.txt", ("noted", "several files share one caption")),
    ],
)
def test_what_is_wrong_is_told(report, name: str, outcome: tuple[str, str]):
    assert outcome in report[name]


def test_bad_files_give_nothing(prepared: Manifest, report):
    bad = {name for name, found in report.items() if any("bad" in o for o in found)}
    assert bad == {"empty.png", "noise.mp4", "half.png", "no_index.mp4"}
    assert not bad & set(prepared.read_column("source").to_pylist())
    # Of a damaged video, what came before the damage.
    assert 10 < sum(map(len, clips(prepared, "half.mkv"))) < 60


def test_a_shared_caption_goes_to_both(prepared: Manifest):
    sources = prepared.read_column("source").to_pylist()
    captions = prepared.read_column("caption").to_pylist()
    found = [captions[sources.index(name)] for name in ("same.png", "same.mp4")]
    assert found == ["one caption for two"] * 2


@pytest.mark.slow
def test_real_clips(
    root: Path, real_clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    copy_clips(tmp_path / "media", installed=real_clips)
    options = ["--media", str(tmp_path / "media"), "--out", str(tmp_path / "out")]
    config = ["--config", str(root / "configs" / "clips.py"), "--workers", "2"]
    assert command.main([*options, *config]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"kept 71 clips from 9 of {len(CAPTIONS)} files" in shown
    assert "2,068 decoded, 1,147 kept; dropped 907 to reach the model's" in shown
    assert "left out 1: frame rate too low, such as rectangles.gif" in shown
    manifest = read_manifest(tmp_path / "out")
    # The rabbit stands in a green meadow, the earth in black space.
    rabbit, earth = (clips(manifest, name)[0] for name in ("bigbuckbunny.mp4", "b.mp4"))
    assert rabbit.mean(axis=(0, 1, 2)).argmax() == 1
    assert np.median(earth) < 20
