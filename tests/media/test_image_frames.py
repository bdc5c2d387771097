"""Tests of jaxload.media.image_frames."""

import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image, ImageCms

from jaxload.media.clip_frames import resize_and_crop
from jaxload.media.frames import MediaError, read_frames, scan
from tests.media.media_files import moving_pattern, plain_frames

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
GREYS = (0, 1, 128, 255)


def only_frame(path) -> np.ndarray:
    """Returns the pixels of an image, and asserts that `scan` agrees."""
    (frame,) = read_frames(path)
    found = scan(path)
    assert (found.num_frames, found.seconds, found.damage) == (1, 0.0, "")
    assert (found.height, found.width) == (frame.height, frame.width)
    pixels = frame.rgb()
    assert pixels.shape == (frame.height, frame.width, 3)
    assert pixels.dtype == np.uint8
    return pixels


def refusal(path) -> str:
    with pytest.raises(MediaError) as error:
        scan(path)
    return error.value.reason


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "ppm", "webp", "jp2", "qoi"])
def test_formats_without_loss_are_exact(tmp_path, suffix):
    picture = moving_pattern(1, 33, 47)[0]
    path = tmp_path / f"picture.{suffix}"
    Image.fromarray(picture).save(path, lossless=suffix == "webp")
    np.testing.assert_array_equal(only_frame(path), picture)


def test_programs_that_draw_are_no_pictures(tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "drawing.eps")
    assert refusal(tmp_path / "drawing.eps") == "not an image or video"


@pytest.mark.parametrize("suffix", ["jpg", "avif"])
def test_formats_with_loss_are_near(tmp_path, suffix):
    picture = plain_frames([(200, 40, 60)], 32, 48)[0]
    path = tmp_path / f"picture.{suffix}"
    Image.fromarray(picture).save(path, quality=95)
    np.testing.assert_allclose(only_frame(path), picture, atol=4)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
def test_pictures_are_upright(tmp_path, suffix, orientation):
    # Its corners tell the eight apart: red at the top left, green at the top right.
    upright = np.zeros((32, 64, 3), np.uint8)
    upright[:16, :16], upright[:16, -16:] = RED, GREEN
    # From upright to how a camera stores it: the inverse of what each number asks.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"picture.{suffix}"
    image = Image.fromarray(np.ascontiguousarray(stored))
    image.save(path, exif=exif)
    np.testing.assert_allclose(only_frame(path)[4, 4], RED, atol=40)
    np.testing.assert_allclose(only_frame(path)[4, -4], GREEN, atol=40)
    assert only_frame(path).shape == upright.shape


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, mode):
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[:4] = (90, 90, 90, 255)
    image = Image.fromarray(rgba)
    if mode == "LA":
        image = image.convert("LA")
    elif mode == "P":
        image = image.quantize(4)
    path = tmp_path / "picture.png"
    image.save(path)
    pixels = only_frame(path)
    assert (pixels[:4] == 90).all()
    assert (pixels[4:] == 255).all()


def test_half_transparent_is_half_white(tmp_path):
    Image.new("RGBA", (8, 8), (0, 0, 200, 128)).save(tmp_path / "picture.png")
    np.testing.assert_allclose(
        only_frame(tmp_path / "picture.png")[0, 0], (127, 127, 227), atol=1
    )


def test_one_colour_may_stand_for_transparent(tmp_path):
    picture = plain_frames([RED], 8, 8)[0]
    picture[4:] = BLUE
    Image.fromarray(picture).save(tmp_path / "picture.png", transparency=BLUE)
    pixels = only_frame(tmp_path / "picture.png")
    assert (tuple(pixels[0, 0]), tuple(pixels[7, 7])) == (RED, WHITE)


@pytest.mark.parametrize(
    ("suffix", "mode"),
    [("png", "I;16"), ("pgm", "I"), ("tiff", "I;16"), ("tiff", "I;16B"), ("tiff", "I")],
)
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path, suffix, mode):
    levels = np.array([[0, 257, 32896, 65535]]).repeat(4, axis=0)
    dtype = {"I;16": "<u2", "I;16B": ">u2", "I": "=i4"}[mode]
    path = tmp_path / f"picture.{suffix}"
    Image.frombytes(mode, (4, 4), levels.astype(dtype).tobytes()).save(path)
    with Image.open(path) as image:
        assert image.mode == mode
    np.testing.assert_array_equal(only_frame(path)[0], [[v] * 3 for v in GREYS])


@pytest.mark.parametrize("value", [-1, 70_000])
def test_integers_beyond_sixteen_bits_are_refused(tmp_path, value):
    levels = np.full((4, 4), value, np.int32)
    Image.fromarray(levels).save(tmp_path / "picture.tiff")
    assert refusal(tmp_path / "picture.tiff") == "unknown range of brightness"


def test_floats_are_refused(tmp_path):
    Image.new("F", (4, 4), 0.5).save(tmp_path / "picture.tiff")
    assert refusal(tmp_path / "picture.tiff") == "unknown range of brightness"


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("1", "png"), ("L", "png"), ("P", "png"), ("CMYK", "tiff"), ("YCbCr", "jpg")],
)
def test_other_modes_become_rgb(tmp_path, mode, suffix):
    picture = plain_frames([WHITE], 16, 16)[0]
    picture[:8] = 0
    path = tmp_path / f"picture.{suffix}"
    Image.fromarray(picture).convert(mode).save(path)
    np.testing.assert_allclose(only_frame(path), picture, atol=3)


def test_lab_becomes_rgb(tmp_path):
    picture = plain_frames([(200, 40, 60)], 8, 8)[0]
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    transform = ImageCms.buildTransform(*profiles, "RGB", "LAB")
    lab = ImageCms.applyTransform(Image.fromarray(picture), transform)
    assert lab is not None
    lab.save(tmp_path / "picture.tiff")
    np.testing.assert_allclose(only_frame(tmp_path / "picture.tiff"), picture, atol=4)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff", "gif", "bmp"])
def test_a_truncated_picture_is_damaged(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = tmp_path / f"picture.{suffix}"
    Image.fromarray(noise).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    assert refusal(path) == "damaged image"


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "tiff", "bmp"])
def test_a_picture_with_too_many_pixels_is_refused(tmp_path, suffix):
    path = tmp_path / f"picture.{suffix}"
    Image.new("RGB", (64, 48)).save(path)
    assert scan(path, max_pixels=64 * 48).width == 64
    for read in (scan, lambda path, **most: list(read_frames(path, **most))):
        with pytest.raises(MediaError) as error:
            read(path, max_pixels=64 * 48 - 1)
        assert error.value.reason == "too many pixels"
        assert error.value.detail == (
            "3,072 pixels; expected at most 3,071 (data.max_source_pixels)"
        )


def test_the_limit_replaces_that_of_pillow(tmp_path, monkeypatch):
    Image.new("RGB", (64, 64)).save(tmp_path / "picture.png")
    for limit in (64 * 48, 64 * 24):  # Of these, Pillow warns and raises an error.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert only_frame(tmp_path / "picture.png").shape == (64, 64, 3)
        assert limit == Image.MAX_IMAGE_PIXELS


def test_a_canvas_that_grows_is_refused(tmp_path):
    path = tmp_path / "moving.gif"
    save_animation(path, plain_frames([RED, GREEN], 16, 16), duration=50)
    data = bytearray(path.read_bytes())
    place = data.rindex(b",\0\0\0\0\x10\0\x10\0")  # The second frame's rectangle.
    data[place + 1 : place + 5] = (60_000).to_bytes(2, "little") * 2
    path.write_bytes(data)
    for read in (scan, lambda path: list(read_frames(path))):
        with pytest.raises(MediaError, match=r"too many pixels: .*3,60\d,|60016x60016"):
            read(path)


# --- Large pictures ---


def peak_bytes(function: str, path) -> int:
    """Returns by how much a process grows to call a function of `frames` on a file."""
    program = f"""
import pathlib, resource
from jaxload.media.clip_frames import resize_and_crop
from jaxload.media.frames import read_frames, scan
def read(path):
    for frame in read_frames(path, size=(480, 832)):
        size = (frame.height, frame.width)
        resize_and_crop(frame.rgb(), displayed=size, size=(480, 832))
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
{function}(pathlib.Path({str(path)!r}))
print(peak() - before)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.parametrize(
    ("suffix", "mode", "scanned", "read"),
    [
        # Bytes per pixel of the decoded picture, which Pillow holds as a whole.
        ("png", "RGB", 4, 4),
        ("png", "RGBA", 4, 4),
        ("png", "L", 1, 1),
        ("png", "I;16", 2, 2),
        ("png", "P", 1, 1),
        ("jpg", "RGB", 4 / 64, 4 / 16),
    ],
)
def test_a_large_picture_takes_the_memory_of_its_pixels(
    tmp_path, suffix, mode, scanned, read
):
    side = 6_000
    path = tmp_path / f"large.{suffix}"
    pixels = np.arange(side, dtype=np.uint8)[None].repeat(side, axis=0)
    image = Image.fromarray(pixels)
    if mode == "I;16":
        image = Image.fromarray(pixels.astype(np.uint16) * 257)
    image.convert(mode).save(path)
    spare = 40 << 20  # For bands, the resized picture and imports.
    assert peak_bytes("scan", path) < scanned * side**2 + spare
    assert peak_bytes("read", path) < read * side**2 + spare + (20 << 20)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_decoded_at_a_reduced_size_looks_the_same(
    tmp_path, suffix, orientation
):
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (9, 13, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"picture.{suffix}"
    # A multiple of 8, because the last pixels of other sizes stand for fewer pixels.
    small.resize((1296, 912), Image.Resampling.BICUBIC).save(
        path, exif=exif, quality=95
    )
    size = (64, 96)
    (whole,), (reduced,) = read_frames(path), read_frames(path, size=size)
    assert (whole.height, whole.width) == (reduced.height, reduced.width)
    assert whole.rgb().size > 3 * reduced.rgb().size
    expected, found = (
        resize_and_crop(frame.rgb(), displayed=(frame.height, frame.width), size=size)
        for frame in (whole, reduced)
    )
    difference = np.abs(expected.astype(int) - found)
    assert (difference.mean() < 1, difference.max() < 12) == (True, True)


def test_a_picture_is_reduced_only_far_above_the_wanted_size(tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(moving_pattern(1, 500, 700)[0]).save(path)
    for size, shape in {
        (100, 100): (500, 700, 3),  # Five times as high.
        (80, 100): (250, 350, 3),
        (10, 10): (32, 44, 3),  # By 16, rounded up.
        (1000, 10): (500, 700, 3),
    }.items():
        (frame,) = read_frames(path, size=size)
        assert frame.rgb().shape == shape
        assert (frame.height, frame.width) == (500, 700)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_reduced_scan_finds_the_damage_that_a_reader_finds(tmp_path, progressive):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = tmp_path / "picture.jpg"
    Image.fromarray(noise).save(path, progressive=progressive)
    data = path.read_bytes()
    outcomes = set()
    for size in range(0, len(data) + 1, 97):
        path.write_bytes(data[:size])
        results = []
        for read in (scan, lambda path: next(read_frames(path)).rgb()):
            try:
                read(path)
            except MediaError as error:
                results.append(error.reason)
            else:
                results.append("good")
        assert results[0] == results[1]
        outcomes.update(results)
    assert {"damaged image", "empty file"} <= outcomes


def test_no_warnings_leak(tmp_path, monkeypatch, recwarn):
    Image.new("RGB", (64, 64)).save(tmp_path / "picture.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48)
    warnings.simplefilter("always")
    only_frame(tmp_path / "picture.png")
    assert not recwarn.list


def save_animation(path, video, **options):
    first, *rest = [Image.fromarray(frame) for frame in video]
    first.save(path, save_all=True, append_images=rest, **options)


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "avif"])
def test_an_animation_is_a_video(tmp_path, suffix):
    video = plain_frames([RED, GREEN, BLUE, WHITE], 32, 48)
    path = tmp_path / f"moving.{suffix}"
    lossless = {"lossless": True} if suffix == "webp" else {}
    save_animation(path, video, duration=[40, 80, 200, 40], **lossless)
    frames = list(read_frames(path))
    np.testing.assert_allclose([f.time for f in frames], [0, 0.04, 0.12, 0.32])
    decoded = np.stack([frame.rgb() for frame in frames])
    np.testing.assert_allclose(decoded, video, atol=8 if suffix == "avif" else 0)
    found = scan(path)
    assert (found.num_frames, found.height, found.width) == (4, 32, 48)
    assert found.seconds == pytest.approx(0.32)


def test_frames_without_a_duration_take_a_tenth_of_a_second(tmp_path):
    path = tmp_path / "moving.gif"
    save_animation(path, plain_frames([RED, GREEN, BLUE], 16, 16), duration=0)
    np.testing.assert_allclose([f.time for f in read_frames(path)], [0, 0.1, 0.2])


def test_a_gif_of_one_frame_is_an_image(tmp_path):
    Image.new("RGB", (16, 16), RED).save(tmp_path / "still.gif")
    assert tuple(only_frame(tmp_path / "still.gif")[0, 0]) == RED


def test_the_picture_for_programs_without_animation_is_no_frame(tmp_path):
    path = tmp_path / "moving.png"
    video = plain_frames([RED, GREEN, BLUE], 16, 16)
    save_animation(path, video, duration=50, default_image=True)
    colours = [tuple(frame.rgb()[0, 0]) for frame in read_frames(path)]
    assert colours == [GREEN, BLUE]
    assert scan(path).seconds == 0.05


def test_later_pages_and_pictures_are_no_motion(tmp_path):
    video = plain_frames([RED, GREEN, BLUE], 16, 16)
    for name in ("pages.tiff", "pictures.mpo"):
        save_animation(tmp_path / name, video)
        np.testing.assert_allclose(only_frame(tmp_path / name)[0, 0], RED, atol=2)


def test_transparent_parts_of_an_animation_are_white(tmp_path):
    frames = [Image.new("RGBA", (16, 16), (0, 0, 0, 0)) for _ in range(2)]
    frames[1].paste((0, 0, 255, 255), (0, 0, 8, 16))
    path = tmp_path / "moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)
    first, second = (frame.rgb() for frame in read_frames(path))
    assert tuple(first[0, 0]) == WHITE
    assert (tuple(second[0, 0]), tuple(second[0, 12])) == (BLUE, WHITE)


def test_an_animation_ends_at_its_damage(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), np.uint8)
    buffer = io.BytesIO()
    first, *rest = [Image.fromarray(frame) for frame in noise]
    first.save(buffer, "GIF", save_all=True, append_images=rest, duration=50)
    whole = tmp_path / "whole.gif"
    whole.write_bytes(buffer.getvalue())
    cut = tmp_path / "cut.gif"
    cut.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) * 7 // 10])
    found = scan(cut)
    assert found.num_frames == 4
    assert found.damage.startswith("damaged after frame 4: ")
    expected = [frame.rgb() for frame in read_frames(whole)][:4]
    np.testing.assert_array_equal([f.rgb() for f in read_frames(cut)], expected)
