"""Tests of jaxload.media.frames: detection of formats, and rejected files."""

import io
import itertools
import os
import pickle
import wave

import numpy as np
import pytest
from PIL import Image

from jaxload.media import video_frames
from jaxload.media.frame import Want
from jaxload.media.frames import MediaError, Scan, read_frames, scan
from tests.media.media_files import moving_pattern, write_audio, write_video

PLAYLIST = """#EXTM3U
#EXT-X-TARGETDURATION:10
#EXTINF:10,
{}
#EXT-X-ENDLIST
"""


def refusal(path) -> str:
    """Returns the reason for which both `scan` and `read_frames` reject a file."""
    with pytest.raises(MediaError) as scanned:
        scan(path)
    with pytest.raises(MediaError) as read:
        list(read_frames(path))
    assert (read.value.reason, read.value.detail) == (
        scanned.value.reason,
        scanned.value.detail,
    )
    return scanned.value.reason


@pytest.mark.parametrize("name", ["clip.mp4", "clip.jpg", "clip%d.jpg", "clip.txt"])
def test_a_video_is_known_by_its_content(tmp_path, name):
    made = write_video(tmp_path / "made.mp4", moving_pattern(5, 32, 48))
    path = made.rename(tmp_path / name)
    expected = Scan(num_frames=5, height=32, width=48, seconds=0.16)
    assert scan(path) == expected
    assert scan(path).fps == 25.0


def test_an_image_is_known_by_its_content(tmp_path):
    picture = moving_pattern(1, 32, 48)[0]
    Image.fromarray(picture).save(tmp_path / "picture.mp4", format="PNG")
    assert scan(tmp_path / "picture.mp4") == Scan(
        num_frames=1, height=32, width=48, seconds=0.0
    )
    (frame,) = read_frames(tmp_path / "picture.mp4")
    np.testing.assert_array_equal(frame.rgb(), picture)


def test_one_frame_has_no_rate(tmp_path):
    path = write_video(tmp_path / "clip.mp4", moving_pattern(1, 32, 48))
    found = scan(path)
    assert found == Scan(num_frames=1, height=32, width=48, seconds=0.0)
    assert found.fps == 0.0


def test_frames_stay_valid_after_the_next_and_after_the_file(tmp_path):
    video = moving_pattern(6, 32, 48)
    path = write_video(tmp_path / "clip.mkv", video, codec="ffv1")
    frames = list(read_frames(path))
    path.unlink()
    decoded = np.stack([frame.rgb() for frame in reversed(frames)])
    np.testing.assert_array_equal(decoded[::-1], video)
    assert decoded.dtype == np.uint8


def test_frames_are_read_one_at_a_time(tmp_path):
    video = moving_pattern(300, 64, 64)
    path = write_video(tmp_path / "clip.avi", video, codec="rawvideo")
    read = []

    class CountedFile(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(-1 if size is None else size)
            read.append(len(data))
            return data

    with CountedFile(path) as file:
        list(itertools.islice(video_frames.decode(file, Want(max_pixels=1 << 20)), 10))
    assert 10 * video[0].nbytes <= sum(read) < path.stat().st_size / 2


def test_files_are_closed(tmp_path):
    path = write_video(tmp_path / "clip.mp4", moving_pattern(5, 32, 48))
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(path.read_bytes()[:600])
    before = len(os.listdir("/proc/self/fd"))
    scan(path)
    frames = read_frames(path)
    next(frames)
    del frames
    refusal(broken)
    assert len(os.listdir("/proc/self/fd")) == before


def test_scanning_converts_no_colours(tmp_path, monkeypatch):
    path = write_video(tmp_path / "clip.mp4", moving_pattern(5, 32, 48))

    def fail(*_):
        raise AssertionError("converted")

    monkeypatch.setattr(video_frames, "_rgb", fail)
    assert scan(path).num_frames == 5
    with pytest.raises(AssertionError, match="converted"):
        next(read_frames(path)).rgb()


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "clip.mp4").touch()
    assert refusal(tmp_path / "clip.mp4") == "empty file"


def test_what_is_no_file_is_refused(tmp_path):
    assert refusal(tmp_path) == "cannot be read"
    assert refusal(tmp_path / "missing.mp4") == "cannot be read"


@pytest.mark.parametrize("name", ["note.txt", "note.mp4", "note.jpg", "note.nfo"])
def test_text_is_no_video(tmp_path, name):
    (tmp_path / name).write_text("A cat \x1b[31m walks.\n" * 200)
    assert refusal(tmp_path / name) == "not an image or video"


def test_noise_is_no_video(tmp_path):
    for seed in range(20):
        path = tmp_path / "noise.mp4"
        path.write_bytes(np.random.default_rng(seed).bytes(3000))
        assert refusal(path) in ("not an image or video", "damaged video")


def test_a_playlist_opens_no_other_file(tmp_path):
    clip = write_video(tmp_path / "clip.mp4", moving_pattern(3, 32, 48))
    for name, text in {
        "list.ffconcat": f"ffconcat version 1.0\nfile '{clip.name}'\n",
        "list.mp4": f"ffconcat version 1.0\nfile '{clip}'\n",
        "list.m3u8": PLAYLIST.format(clip),
        "net.m3u8": PLAYLIST.format("http://localhost:9/clip.ts"),
    }.items():
        (tmp_path / name).write_text(text)
        assert refusal(tmp_path / name) == "not an image or video"


def test_sound_alone_is_no_video(tmp_path):
    assert refusal(write_audio(tmp_path / "sound.mkv")) == "no video stream"
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(8000))
    assert refusal(tmp_path / "sound.wav") == "not an image or video"


def test_a_heic_photo_is_not_taken_for_a_video(tmp_path):
    path = write_video(tmp_path / "photo.mp4", moving_pattern(1, 32, 48))
    path.write_bytes(path.read_bytes().replace(b"ftypisom", b"ftypheic", 1))
    assert refusal(path) == "HEIC photo"


def test_nothing_is_printed(tmp_path, capfd):
    path = write_video(tmp_path / "clip.mp4", moving_pattern(20, 32, 48))
    data = path.read_bytes()
    capfd.readouterr()
    for size in range(100, len(data), 500):
        path.write_bytes(data[:size])
        try:
            scan(path)
        except MediaError:
            continue
    assert capfd.readouterr() == ("", "")


def test_an_error_can_be_sent_to_another_process():
    error = pickle.loads(pickle.dumps(MediaError("damaged video", "at the start")))
    assert (error.reason, error.detail) == ("damaged video", "at the start")
    assert str(error) == "damaged video: at the start"
    assert str(MediaError("empty file")) == "empty file"


def test_metadata_in_another_encoding_do_no_harm(tmp_path):
    path = write_video(tmp_path / "clip.mkv", moving_pattern(3, 32, 48))
    data = path.read_bytes()
    assert b"Lavf" in data
    path.write_bytes(data.replace(b"Lavf", b"\xff\xfevf"))
    assert scan(path).num_frames == 3
