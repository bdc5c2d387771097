"""Tests of reading damaged images and videos: frames, or a reason in the report."""

import re
import resource
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jaxload.media.clip_frames import read_clips
from jaxload.media.cutting import cut_file
from jaxload.media.frames import MediaError, Scan, read_frames, scan
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape
from tests.media.byte_edits import edited
from tests.media.media_files import moving_pattern, write_video

VIDEO = moving_pattern(5, 32, 48)

# A picture of any size has clips; so do videos of five frames or more.
RULES = ShapeRules(
    fps=30.0, max_frames=5, min_fps=0.001, max_upscale=1e6, max_crop=0.99
)
SIZES = ((2, 2),)

MAX_PIXELS = 1 << 20
MAX_GROWTH = 700 << 20  # FFmpeg may decode a frame before its size is known.
MAX_SECONDS = 10.0  # Of CPU time, for a file of a few kilobytes.

REASONS = frozenset(
    {
        *("damaged image", "damaged video", "empty file", "not an image or video"),
        *("too many pixels", "unknown range of brightness", "unsupported colours"),
        *("HEIC photo", "no video stream", "unknown video codec", "no time stamps"),
        *("invalid shape of pixels", "cannot be read", "changed while it was prepared"),
    }
)


def picture(suffix: str, **options) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / f"picture.{suffix}"
        Image.fromarray(VIDEO[0]).save(path, **options)
        return path

    return write


def animation(suffix: str, **options) -> Callable[[Path], Path]:
    first, *rest = [Image.fromarray(frame) for frame in VIDEO]
    more = {"save_all": True, "append_images": rest, "duration": 60}

    def write(folder: Path) -> Path:
        path = folder / f"moving.{suffix}"
        first.save(path, **more, **options)
        return path

    return write


def video(suffix: str, codec: str) -> Callable[[Path], Path]:
    options = {"deadline": "realtime", "cpu-used": "8"} if codec == "libvpx" else None

    def write(folder: Path) -> Path:
        path = folder / f"video.{suffix}"
        return write_video(path, VIDEO, codec=codec, options=options)

    return write


FILES = {
    "png": picture("png"),
    "apng": animation("png"),
    "jpeg": picture("jpg"),
    "progressive jpeg": picture("jpg", progressive=True),
    "jpeg 2000": picture("jp2"),
    "gif": animation("gif"),
    "disposed gif": animation("gif", disposal=2),
    "webp": picture("webp"),
    "animated webp": animation("webp"),
    "tiff": picture("tiff"),
    "tiff of lzw": picture("tiff", compression="tiff_lzw"),
    "tiff of deflate": picture("tiff", compression="tiff_deflate"),
    "tiff of jpeg": picture("tiff", compression="jpeg"),
    "bmp": picture("bmp"),
    "avif": picture("avif"),
    "animated avif": animation("avif"),
    "mp4 of h264": video("mp4", "libx264"),
    "mp4 of mpeg4": video("mp4", "mpeg4"),
    "mov": video("mov", "qtrle"),
    "webm": video("webm", "libvpx-vp9"),
    "mkv": video("mkv", "libx264"),
    "avi": video("avi", "mpeg4"),
    "ts": video("ts", "mpeg2video"),
    "ogg": video("ogg", "libvpx"),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Returns the content of a valid file of each type."""
    folder = tmp_path_factory.mktemp("valid")
    found = {name: write(folder).read_bytes() for name, write in FILES.items()}
    assert max(map(len, found.values())) < 10_000
    return found


def scanned(path: Path) -> Scan | None:
    """Scans a file; returns None if it is refused, for a known reason."""
    try:
        found = scan(path, max_pixels=MAX_PIXELS)
    except MediaError as error:
        check_refusal(error)
        return None
    assert found.num_frames >= 1
    assert min(found.height, found.width) >= 1
    assert max(found.height, found.width) < 1 << 31  # As in the table of scans.
    return found


def check_refusal(error: MediaError) -> None:
    """Asserts that the reason is a known one, and the detail short."""
    assert error.reason in REASONS
    assert "\n" not in error.detail
    assert len(error.detail) < 500


def check(path: Path) -> None:
    """Asserts that a file is refused, or has the frames and clips of its scan."""
    found = scanned(path)
    if found is None:
        return
    frames = []
    for frame in read_frames(path, max_pixels=MAX_PIXELS, num_frames=found.num_frames):
        assert (frame.height, frame.width) == (found.height, found.width)
        frames.append((frame.time, frame.rgb()))
    assert len(frames) == found.num_frames
    assert frames[-1][0] == found.seconds
    cutting = cut_file(path.name, found, SIZES, RULES, DEFAULT)
    if not cutting.clips:
        return
    clips = read_clips(path, cutting, buffer, max_pixels=MAX_PIXELS)
    assert [clip for clip, _ in clips] == list(cutting.clips)


def buffer(shape: Shape) -> np.ndarray:
    return np.empty((*shape.pixels, 3), np.uint8)


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("name", FILES)
def test_whole_files_have_clips(tmp_path: Path, valid: dict[str, bytes], name: str):
    (tmp_path / "file").write_bytes(valid[name])
    found = scanned(tmp_path / "file")
    assert found is not None
    assert found.damage == ""
    assert found.num_frames == (1 if FILES[name].__qualname__[:7] == "picture" else 5)
    assert cut_file("file", found, SIZES, RULES, DEFAULT).clips
    check(tmp_path / "file")


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_a_damaged_file_gives_the_frames_of_its_scan_or_a_reason(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    valid: dict[str, bytes],
    name: str,
    data: st.DataObject,
):
    path = tmp_path / "file"  # Without a suffix, by which a reader could go.
    path.write_bytes(data.draw(edited(valid[name])))
    peak, start = peak_bytes(), time.process_time()
    check(path)
    assert time.process_time() - start < MAX_SECONDS
    assert peak_bytes() - peak < MAX_GROWTH
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.fuzz
@given(
    content=st.binary(max_size=60),
    start=st.sampled_from(
        [
            *(b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"II*\0"),
            *(
                b"MM\0*",
                b"RIFF\0\1\0\0WEBP",
                b"RIFF\0\1\0\0AVI ",
                b"\0\0\0\x20ftypavif",
            ),
            *(b"\0\0\0\x14ftypisom", b"\x1a\x45\xdf\xa3", b"OggS\0", b"G@\0", b"FLV\1"),
        ]
    ),
)
def test_any_bytes_are_frames_or_a_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], start: bytes, content: bytes
):
    path = tmp_path / "file"
    path.write_bytes(start + content)
    check(path)
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.parametrize(
    ("ratio", "width"),
    [
        ((100, 1), 4_800),
        ((1, 100), 1),  # Rounded up from half a pixel.
        ((101, 1), None),
        ((1, 101), None),
        ((2**31 - 1, 1), None),
        ((1, 2**31 - 1), None),
    ],
)
def test_a_video_of_needles_is_refused(
    tmp_path: Path, ratio: tuple[int, int], width: int | None
):
    path = tmp_path / "video.mp4"
    write_video(path, VIDEO, codec="mpeg4", sample_aspect_ratio=Fraction(2))
    before, _, after = path.read_bytes().partition(b"pasp")
    sides = b"".join(side.to_bytes(4, "big") for side in ratio)
    path.write_bytes(before + b"pasp" + sides + after[8:])
    if width is not None:
        found = scanned(path)
        assert found is not None
        assert found.width == width
        check(path)
        return
    with pytest.raises(MediaError) as error:
        scan(path)
    assert error.value.reason == "invalid shape of pixels"
    assert error.value.detail == f"{ratio[0]}:{ratio[1]}; expected 1:100 to 100:1"


def test_a_reader_of_a_gif_stops_where_the_scan_stopped(tmp_path: Path):
    """Empties the second frame; Pillow then takes what follows for its pixels."""
    path = animation("gif")(tmp_path)
    content = path.read_bytes()
    second = [match.start() for match in re.finditer(rb",\0\0\0\0.\0.\0", content)][1]
    end = second + 10
    if content[second + 9] & 128:
        end += 3 << (content[second + 9] & 7) + 1
    path.write_bytes(content[: end + 1] + b"\0" + content[end + 1 :])
    found = scan(path)
    assert found.damage.startswith("damaged after frame 1: ")
    with pytest.raises(MediaError, match="too many pixels"):
        list(read_frames(path))  # Past the frames of the scan.
    check(path)


def test_a_damaged_avif_is_no_heic_photo(tmp_path: Path):
    path = picture("avif")(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"pict", b"\0\0\0\0"))
    with pytest.raises(MediaError, match="damaged image"):
        scan(path)
