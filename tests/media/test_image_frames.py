"""Tests of jaxload.media.image_frames."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image, ImageCms

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


def test_a_picture_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    Image.new("RGB", (64, 64)).save(tmp_path / "picture.png")
    for limit in (64 * 64, 64 * 48):  # Of the second, Pillow would warn.
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert only_frame(tmp_path / "picture.png").shape == (64, 64, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 24)
    assert refusal(tmp_path / "picture.png") == "too large an image"
    assert Image.MAX_IMAGE_PIXELS == 64 * 24


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
