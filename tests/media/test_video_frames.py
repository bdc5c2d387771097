"""Tests of jaxload.media.video_frames."""

import errno
import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from jaxload.media import video_frames
from jaxload.media.frame import MediaError, Want
from jaxload.media.frames import read_frames, scan
from tests.media.media_files import moving_pattern, plain_frames, write_video

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def decoded(path) -> np.ndarray:
    """Returns all frames of a video, and asserts that `scan` counts as many."""
    frames = [frame.rgb() for frame in read_frames(path)]
    assert len(frames) == scan(path).num_frames
    return np.stack(frames)


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        ("libx264", "clip.mp4"),
        ("libx264", "clip.mkv"),
        ("libx264", "clip.flv"),
        ("libx264", "clip.ts"),
        ("libx264", "clip.h264"),
        ("mpeg4", "clip.avi"),
        ("mpeg2video", "clip.mpg"),
        ("mjpeg", "clip.avi"),
        ("libvpx-vp9", "clip.webm"),
    ],
)
def test_containers_and_codecs(tmp_path, codec, name):
    video = moving_pattern(12, 32, 48)
    path = write_video(tmp_path / name, video, codec=codec)
    found = scan(path)
    assert (found.num_frames, found.height, found.width) == (12, 32, 48)
    assert found.seconds == pytest.approx(11 / 25, abs=2e-3)
    assert found.damage == ""
    error = np.abs(decoded(path).astype(int) - video).mean(axis=(1, 2, 3))
    assert error.max() < 30  # Of 0 to 255; one frame late or early it is above 50.


@pytest.mark.parametrize("codec", ["ffv1", "png", "rawvideo"])
@pytest.mark.parametrize("size", [(32, 48), (33, 47)])
def test_codecs_without_loss_are_exact(tmp_path, codec, size):
    video = moving_pattern(4, *size)
    path = write_video(tmp_path / "clip.mkv", video, codec=codec, container="nut")
    np.testing.assert_array_equal(decoded(path), video)


@pytest.mark.parametrize(
    ("codec", "pix_fmt"),
    [
        *[("libx264", f) for f in ("yuv420p10le", "yuv444p", "yuv422p", "gray")],
        *[("ffv1", f) for f in ("gray16le", "yuv420p12le", "yuv410p")],
        ("libx264rgb", "rgb24"),
    ],
)
def test_pixel_formats(tmp_path, codec, pix_fmt):
    video = plain_frames([(90, 90, 90), (200, 200, 200)], 32, 48)
    # FFmpeg makes grey from 0 to 255, which H.264 must be told.
    colors = {"color_range": 2} if pix_fmt == "gray" else None
    path = write_video(
        tmp_path / "clip.mkv", video, codec=codec, pix_fmt=pix_fmt, colors=colors
    )
    np.testing.assert_allclose(decoded(path), video, atol=3)


def test_odd_sizes(tmp_path):
    video = plain_frames([RED, GREEN], 31, 45)
    path = write_video(tmp_path / "clip.mp4", video, pix_fmt="yuv444p")
    assert decoded(path).shape == (2, 31, 45, 3)


# Y, Cb and Cr of (200, 40, 60) by the standards' own numbers, in the range 16 to 235
# and 16 to 240: Y = Kr R + Kg G + Kb B, Cb = (B - Y) / (2 - 2 Kb), and so for Cr.
WEIGHTS = {
    1: (0.2126, 0.0722),
    5: (0.299, 0.114),
    6: (0.299, 0.114),
    9: (0.2627, 0.0593),
}


@pytest.mark.parametrize("matrix", WEIGHTS)
@pytest.mark.parametrize("full_range", [False, True])
def test_colours_are_those_that_were_tagged(tmp_path, matrix, full_range):
    kr, kb = WEIGHTS[matrix]
    red, green, blue = (c / 255 for c in (200, 40, 60))
    y = kr * red + (1 - kr - kb) * green + kb * blue
    differences = np.array([(blue - y) / (2 - 2 * kb), (red - y) / (2 - 2 * kr)])
    if full_range:
        planes = [255 * y, *(128 + 255 * differences)]
    else:
        planes = [16 + 219 * y, *(128 + 224 * differences)]
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=25, options={"qp": "0"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv444p"
        stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = 2 if full_range else 1
        array = np.broadcast_to(
            np.rint(planes).astype(np.uint8)[:, None, None], (3, 32, 48)
        )
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), "yuv444p")
        frame.colorspace, frame.color_range = matrix, 2 if full_range else 1
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    np.testing.assert_allclose(decoded(path)[0, 5, 5], (200, 40, 60), atol=3)


@pytest.mark.parametrize(("size", "matrix"), [((720, 1280), 1), ((32, 48), 5)])
def test_colours_without_a_tag_are_guessed_by_size(size, matrix):
    frame = av.VideoFrame(size[1], size[0], "yuv420p")
    for plane, value in zip(frame.planes, (120, 90, 160), strict=True):
        plane.update(bytes([value]) * plane.buffer_size)
    upright = (False, False, False)
    reformatter = VideoReformatter()
    for unknown in (2, 3):
        frame.colorspace = unknown
        guessed = video_frames._rgb(frame, upright, reformatter)
        frame.colorspace = matrix
        np.testing.assert_array_equal(
            guessed, video_frames._rgb(frame, upright, reformatter)
        )


@pytest.mark.parametrize(("name", "matrix"), [("YCgCo", 8), ("bt2020c", 10)])
def test_colours_that_cannot_be_converted_are_refused(tmp_path, name, matrix):
    path = write_video(
        tmp_path / "clip.mp4",
        moving_pattern(2, 32, 48),
        options={"x264-params": f"colormatrix={name}"},
    )
    with pytest.raises(MediaError, match=f"unsupported colours: matrix {matrix}"):
        scan(path)


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("clip.mov", "png", "rgba"),
        ("clip.mov", "qtrle", "argb"),
        ("clip.mkv", "ffv1", "yuva420p"),
    ],
)
def test_what_is_transparent_is_white(tmp_path, name, codec, pix_fmt):
    video = np.zeros((2, 32, 48, 4), np.uint8)
    video[:, :16] = (90, 90, 90, 255)
    path = write_video(tmp_path / name, video, codec=codec, pix_fmt=pix_fmt)
    np.testing.assert_allclose(decoded(path)[:, :12], 90, atol=2)
    np.testing.assert_allclose(decoded(path)[:, 20:], 255, atol=2)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("mirrored", [False, True])
def test_frames_are_upright(tmp_path, rotation, mirrored):
    video = np.zeros((2, 32, 64, 3), np.uint8)
    video[:, :16, :16], video[:, :16, -16:] = RED, GREEN
    path = write_video(
        tmp_path / "clip.mov", video, codec="png", rotation=rotation, mirrored=mirrored
    )
    expected = np.rot90(video, rotation // 90, axes=(1, 2))
    if mirrored:
        expected = expected[:, :, ::-1]
    np.testing.assert_array_equal(decoded(path), expected)
    assert (scan(path).height, scan(path).width) == expected.shape[1:3]


@pytest.mark.parametrize(
    ("ratio", "rotation", "displayed"),
    [
        (Fraction(4, 3), None, (32, 64)),
        (Fraction(1, 2), None, (32, 24)),
        (Fraction(16, 15), None, (32, 51)),
        (Fraction(4, 3), 90, (64, 32)),
    ],
)
def test_the_displayed_size_has_square_pixels(tmp_path, ratio, rotation, displayed):
    path = write_video(
        tmp_path / "clip.mp4",
        moving_pattern(3, 32, 48),
        sample_aspect_ratio=ratio,
        rotation=rotation,
    )
    found, frame = scan(path), next(read_frames(path))
    assert (found.height, found.width) == (frame.height, frame.width) == displayed
    assert frame.rgb().shape == ((48, 32, 3) if rotation else (32, 48, 3))


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv"])
def test_times_are_those_of_the_frames(tmp_path, name):
    times = [0.0, 0.04, 0.2, 0.21, 0.5, 1.5]
    path = write_video(tmp_path / name, moving_pattern(6, 32, 48), times=times)
    found = [frame.time for frame in read_frames(path)]
    np.testing.assert_allclose(found, times, atol=1e-3)
    assert scan(path).seconds == pytest.approx(1.5, abs=1e-3)
    assert scan(path).fps == pytest.approx(5 / 1.5, rel=1e-2)


def test_times_count_from_the_first_frame(tmp_path):
    times = [10 + i / 25 for i in range(5)]
    path = write_video(tmp_path / "clip.mkv", moving_pattern(5, 32, 48), times=times)
    assert next(read_frames(path)).time == 0.0
    assert scan(path).seconds == pytest.approx(4 / 25, abs=1e-3)


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([5, 55, 105], [0, 0.05, 0.1]),
        ([5, None, 105], [0, 0.04, 0.1]),
        ([None, None, None], [0, 0.04, 0.08]),
        ([None, 50, 100], [0, 0.05, 0.1]),
        ([0, 50, 50, 10, 200], [0, 0.05, 0.09, 0.13, 0.2]),
    ],
)
def test_times_always_increase(stamps, expected):
    clock = video_frames._Clock(Fraction(25))
    seconds = [None if stamp is None else Fraction(stamp, 1000) for stamp in stamps]
    times = [clock.time(stamp, drained=False) for stamp in seconds]
    np.testing.assert_allclose(times, expected)


def test_several_frames_without_times_or_a_rate_are_refused():
    clock = video_frames._Clock(None)
    assert clock.time(None, drained=False) == 0.0
    with pytest.raises(MediaError, match="no time stamps"):
        clock.time(None, drained=False)


def write_with_cover(path, codec: str) -> None:
    """Writes a video or audio file, by codec, with a cover picture."""
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream(codec, rate=8000 if codec == "aac" else 25)
        cover = output.add_stream("mjpeg", rate=25)
        cover.height, cover.width, cover.pix_fmt = 16, 16, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        if isinstance(stream, VideoStream):
            stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
            for array in moving_pattern(4, 32, 48):
                output.mux(stream.encode(av.VideoFrame.from_ndarray(array)))
            output.mux(stream.encode(None))
        else:
            frame = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), "f4"), "fltp", "mono"
            )
            frame.sample_rate = 8000
            output.mux(stream.encode(frame) + stream.encode(None))
        picture = av.VideoFrame.from_ndarray(moving_pattern(1, 16, 16)[0])
        output.mux(cover.encode(picture) + cover.encode(None))


def test_a_cover_picture_is_no_video(tmp_path):
    write_with_cover(tmp_path / "clip.mp4", "mpeg4")
    found = scan(tmp_path / "clip.mp4")
    assert (found.num_frames, found.height, found.width) == (4, 32, 48)
    write_with_cover(tmp_path / "song.mp4", "aac")
    with av.open(str(tmp_path / "song.mp4")) as container:
        assert container.streams.video[0].disposition == Disposition.attached_pic
    with pytest.raises(MediaError, match="no video stream"):
        scan(tmp_path / "song.mp4")


def test_sound_beside_the_video_does_no_harm(tmp_path):
    video = moving_pattern(5, 32, 48)
    path = write_video(tmp_path / "clip.mkv", video, codec="ffv1", audio=True)
    np.testing.assert_array_equal(decoded(path), video)


def test_threads_would_give_the_same_frames(tmp_path):
    path = write_video(tmp_path / "clip.mp4", moving_pattern(20, 64, 96))
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "AUTO"
        frames = [
            frame.to_ndarray(format="rgb24", src_colorspace=5)
            for frame in container.decode(video=0)
        ]
    np.testing.assert_array_equal(decoded(path), frames)


def test_empty_packets_repeat_a_frame_and_end_nothing(tmp_path):
    """Replaces packets by empty ones, as encoders of Theora do for equal frames."""
    video = moving_pattern(12, 32, 48)
    source = write_video(tmp_path / "whole.nut", video, codec="png")
    path, empty = tmp_path / "clip.nut", (5, 6, 11)
    with av.open(str(source)) as whole, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(whole.streams.video[0])
        for i, packet in enumerate(p for p in whole.demux(video=0) if p.size):
            kept = packet if i not in empty else av.Packet(0)
            kept.pts, kept.dts, kept.stream = packet.pts, packet.dts, stream
            kept.time_base = packet.time_base
            output.mux(kept)
    with av.open(str(path)) as container:
        sizes = [packet.size for packet in container.demux(video=0)]
    assert sizes.count(0) == len(empty) + 1  # The last one flushes the decoder.
    assert scan(path).damage == ""
    left = [i for i in range(12) if i not in empty]
    np.testing.assert_array_equal(decoded(path), video[left])
    times = [frame.time for frame in read_frames(path)]
    np.testing.assert_allclose(times, [i / 25 for i in left])


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        *[("libx264", f"clip.{s}") for s in ("mp4", "mkv", "ts", "h264")],
        *[("mpeg4", "clip.avi"), ("libvpx-vp9", "clip.webm"), ("ffv1", "clip.nut")],
    ],
)
def test_a_video_with_too_many_pixels_is_refused_before_it_is_decoded(
    tmp_path, monkeypatch, codec, name
):
    path = write_video(tmp_path / name, moving_pattern(3, 64, 96), codec=codec)
    assert scan(path, max_pixels=64 * 96).num_frames == 3

    def fail(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr(video_frames, "_decode", fail)
    for read in (scan, lambda path, **most: list(read_frames(path, **most))):
        with pytest.raises(MediaError) as error:
            read(path, max_pixels=64 * 96 - 1)
        assert error.value.reason == "too many pixels"
        assert error.value.detail == (
            "96x64 pixels; expected at most 6,143 (data.max_source_pixels)"
        )


def test_a_video_whose_frames_grow_is_refused(tmp_path):
    small = write_video(tmp_path / "small.h264", moving_pattern(4, 64, 96))
    large = write_video(tmp_path / "large.h264", moving_pattern(4, 128, 192))
    path = tmp_path / "grows.h264"
    path.write_bytes(small.read_bytes() + large.read_bytes())
    found = scan(path)
    assert found.damage == "damaged after frame 4: 96x64 becomes 192x128"
    with pytest.raises(MediaError, match="too many pixels: 192x128 pixels"):
        scan(path, max_pixels=64 * 96)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_frame_with_data_unknown_to_pyav_is_turned(tmp_path, rotation):
    """FFmpeg attaches the tags of a TIFF frame, a type that PyAV does not list."""
    video = moving_pattern(3, 32, 48)
    known, unknown = (
        write_video(
            tmp_path / f"{codec}.mov",
            video,
            codec=codec,
            pix_fmt="rgb24",
            rotation=turn,
        )
        for codec, turn in (("png", rotation), ("tiff", rotation))
    )
    with av.open(str(unknown)) as container:
        frame = next(container.decode(video=0))
        with pytest.raises(ValueError, match="is not a valid Type"):
            _ = frame.side_data
    np.testing.assert_array_equal(decoded(unknown), decoded(known))


def test_an_index_before_the_start_of_a_file_is_ignored(tmp_path):
    """In NUT, the last bytes of a file tell how far back the index begins."""
    path = write_video(
        tmp_path / "clip.nut", moving_pattern(24, 48, 64), codec="rawvideo"
    )
    data = path.read_bytes()
    for size in range(len(data) // 2, len(data), len(data) // 37):
        path.write_bytes(data[:size])
        assert 10 < scan(path).num_frames <= 24


def test_an_error_of_the_disk_is_no_damage(tmp_path):
    class Failing(io.FileIO):
        def seek(self, offset, whence=0):
            if offset:
                raise OSError(errno.EIO, "Input/output error")
            return super().seek(offset, whence)

    path = write_video(
        tmp_path / "clip.mp4", moving_pattern(24, 48, 64), index_first=False
    )
    with Failing(path) as file, pytest.raises(OSError, match="Input/output error"):
        list(video_frames.decode(file, Want(max_pixels=1 << 20)))


PQ, HLG, BT2020 = 16, 18, 9  # Values of AVColorTransferCharacteristic and -Primaries.


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("a.mp4", "libx265", "yuv420p10le"),
        ("a.mkv", "libx264", "yuv420p"),
        ("b.mkv", "ffv1", "yuv420p"),  # The container states the colours.
        ("a.webm", "libvpx-vp9", "yuv420p"),
    ],
)
@pytest.mark.parametrize(
    ("colors", "notes"),
    [
        ({"color_trc": PQ}, (("HDR, not tone-mapped", "PQ (SMPTE ST 2084)"),)),
        (
            {"color_trc": HLG, "color_primaries": BT2020},
            (("HDR, not tone-mapped", "HLG (ARIB STD-B67)"),),
        ),
        (
            {"color_primaries": BT2020},
            (("wide colours, taken for BT.709", "primaries of BT.2020"),),
        ),
        ({"color_trc": 1, "color_primaries": 1}, ()),
        ({}, ()),
    ],
)
def test_hdr_is_noted(tmp_path, name, codec, pix_fmt, colors, notes):
    video = moving_pattern(3, 48, 64)
    path = write_video(
        tmp_path / name, video, codec=codec, pix_fmt=pix_fmt, colors=colors
    )
    assert scan(path).notes == notes


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", {"x264-params": "interlaced=1"}),
        ("a.mpg", "mpeg2video", {"flags": "+ilme+ildct", "alternate_scan": "1"}),
    ],
)
def test_interlaced_videos_are_noted(tmp_path, name, codec, options):
    video = moving_pattern(4, 48, 64)
    path = write_video(tmp_path / name, video, codec=codec, options=options)
    assert scan(path).notes == (("interlaced, not deinterlaced", ""),)
    path = write_video(tmp_path / name, video, codec=codec)
    assert scan(path).notes == ()
