"""Tests of jaxload.media.video_frames with damaged videos."""

import contextlib
import itertools

import av
import numpy as np
import pytest
from av.error import FFmpegError

from jaxload.media.frames import MediaError, read_frames, scan
from tests.media.media_files import moving_pattern, write_video

CUT = [
    ("libx264", "clip.mp4"),
    ("libx264", "clip.mkv"),
    ("libx264", "clip.ts"),
    ("mpeg4", "clip.mp4"),
    ("mpeg4", "clip.avi"),
    ("mpeg2video", "clip.ts"),
    ("mjpeg", "clip.avi"),
    ("libvpx-vp9", "clip.webm"),
]


def refusal(path) -> str:
    with pytest.raises(MediaError) as error:
        scan(path)
    return error.value.reason


def noisy(num_frames: int) -> np.ndarray:
    """Returns noisy frames, so that each encodes to many bytes."""
    noise = np.random.default_rng(0).integers(-20, 20, (num_frames, 64, 96, 3))
    return (moving_pattern(num_frames, 64, 96) + noise).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(("codec", "name"), CUT)
@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_a_file_that_was_cut_short_gives_its_first_frames(tmp_path, codec, name, share):
    # With frames that depend on later ones, which a cut may take away.
    options = {"preset": "medium"} if codec == "libx264" else None
    path = write_video(tmp_path / name, noisy(30), codec=codec, options=options)
    whole = [(frame.time, frame.rgb()) for frame in read_frames(path)]
    assert len(whole) == 30
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    found, first = scan(path), list(read_frames(path))
    assert 5 <= len(first) == found.num_frames < 30
    assert [frame.time for frame in first] == [time for time, _ in whole[: len(first)]]
    np.testing.assert_array_equal(
        [frame.rgb() for frame in first], [rgb for _, rgb in whole[: len(first)]]
    )
    # A transport stream does not say how long it is.
    if path.suffix != ".ts":
        assert found.damage == f"damaged after frame {len(first)}: data are missing"


def test_an_index_that_lists_more_tells_of_a_cut_between_frames(tmp_path):
    path = write_video(tmp_path / "clip.mp4", noisy(20), codec="mpeg4")
    with av.open(str(path)) as container:
        starts = [packet.pos for packet in container.demux(video=0) if packet.size]
    path.write_bytes(path.read_bytes()[: starts[12]])
    assert scan(path).damage == "damaged after frame 12: data are missing"


def test_a_file_without_its_index_is_a_damaged_video(tmp_path):
    for name in ("clip.mp4", "clip.mkv", "clip.avi"):
        path = write_video(tmp_path / name, noisy(5), codec="mpeg4")
        path.write_bytes(path.read_bytes()[:100])
        assert refusal(path) == "damaged video"
    path = write_video(tmp_path / "last.mp4", noisy(5), index_first=False)
    path.write_bytes(path.read_bytes()[:-200])
    assert refusal(path) == "damaged video"


def overwrite(path, packet: int, share: float, num_bytes: int) -> None:
    """Overwrites some bytes in a packet of a video."""
    with av.open(str(path)) as container:
        packets = [(p.pos or 0, p.size) for p in container.demux(video=0) if p.size]
    position, size = packets[packet]
    start = position + 8 + int(share * (size - 8 - num_bytes))
    data = bytearray(path.read_bytes())
    noise = np.random.default_rng(packet).integers(1, 256, num_bytes)
    for i in range(num_bytes):
        data[start + i] ^= int(noise[i])
    path.write_bytes(data)


def strict_count(path) -> int:
    """Counts the frames that strict PyAV decodes before an error or a corrupt frame."""
    count = 0
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        context.options, context.thread_count = {"err_detect": "explode"}, 1
        with contextlib.suppress(FFmpegError):
            for frame in container.decode(video=0):
                if frame.is_corrupt:
                    break
                count += 1
    return count


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_video_ends_at_overwritten_data(tmp_path, codec):
    options = {"preset": "medium"} if codec == "libx264" else None
    path = write_video(tmp_path / "clip.mp4", noisy(20), codec=codec, options=options)
    good, noticed = path.read_bytes(), 0
    for packet, share in itertools.product(range(6, 19), (0.2, 0.4, 0.6, 0.8)):
        path.write_bytes(good)
        overwrite(path, packet, share, 8)
        found = scan(path)
        assert found.num_frames == len(list(read_frames(path))) == strict_count(path)
        noticed += found.num_frames < 20
    assert noticed > 10  # Of 52; the others decode to something.


def test_damage_in_the_first_frame_leaves_nothing(tmp_path):
    path = write_video(tmp_path / "clip.mp4", noisy(5), codec="mpeg4")
    with av.open(str(path)) as container:
        packet = next(container.demux(video=0))
        start, size = packet.pos or 0, packet.size
    data = bytearray(path.read_bytes())
    data[start + 20 : start + size] = bytes(size - 20)
    path.write_bytes(data)
    assert refusal(path) == "damaged video"


def test_a_video_ends_where_its_size_changes(tmp_path):
    path = write_video(tmp_path / "clip.h264", moving_pattern(6, 32, 48))
    other = write_video(tmp_path / "other.h264", moving_pattern(6, 48, 32))
    path.write_bytes(path.read_bytes() + other.read_bytes())
    found = scan(path)
    assert (found.num_frames, found.height, found.width) == (6, 32, 48)
    assert found.damage == "damaged after frame 6: 48x32 becomes 32x48"
    assert len(list(read_frames(path))) == 6


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts"])
@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_a_clip_cut_out_without_encoding_begins_where_it_can(tmp_path, codec, name):
    """Cuts at a key frame that is followed by frames which reference earlier ones."""
    options = {"g": "12", "bf": "2"}
    if codec == "libx264":
        gop = "open-gop=1:keyint=20:min-keyint=20:scenecut=0:bframes=3"
        options = {"preset": "medium", "x264-params": gop}
    path = write_video(
        tmp_path / f"whole-{name}", noisy(60), codec=codec, options=options
    )
    whole = [frame.rgb() for frame in read_frames(path)]
    with av.open(str(path)) as source, av.open(str(tmp_path / name), "w") as target:
        packets = [packet for packet in source.demux(video=0) if packet.size]
        stream = target.add_stream_from_template(source.streams.video[0])
        first = [i for i, packet in enumerate(packets) if packet.is_keyframe][1]
        for packet in packets[first:]:
            packet.stream = stream
            target.mux(packet)
    found = [frame.rgb() for frame in read_frames(tmp_path / name)]
    assert len(packets) - first - 3 <= len(found) < len(packets) - first
    np.testing.assert_array_equal(found, whole[-len(found) :])
