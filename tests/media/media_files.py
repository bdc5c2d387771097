"""Writes small media files for tests."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

_PIXEL_FORMATS = {
    "ffv1": "bgr0",
    "mjpeg": "yuvj420p",
    "png": "rgb24",
    "qtrle": "rgb24",
    "rawvideo": "bgr24",
}
_OPTIONS = {
    "libx264": {"preset": "ultrafast", "crf": "10"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none"},
    "mpeg4": {"qmin": "2", "qmax": "4"},
    "mpeg2video": {"qmin": "2", "qmax": "4"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "10", "b": "0"},
}


def moving_pattern(
    num_frames: int, height: int, width: int, *, seed: int = 0
) -> np.ndarray:
    """Returns distinct frames of colour blocks moving right: uint8 `[n, h, w, 3]`."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    picture = blocks.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    return np.stack([np.roll(picture, 2 * i, axis=1) for i in range(num_frames)])


def plain_frames(colors: Sequence[tuple[int, int, int]], height: int, width: int):
    """Returns one plain frame per colour: uint8 `[n, h, w, 3]`."""
    picture = np.array(colors, np.uint8)[:, None, None]
    return np.broadcast_to(picture, (len(colors), height, width, 3)).copy()


def write_video(
    path: Path,
    frames: np.ndarray,
    *,
    fps: float | Fraction = 25,
    codec: str = "libx264",
    times: Sequence[float] | None = None,
    rotation: int | None = None,
    mirrored: bool = False,
    sample_aspect_ratio: Fraction | None = None,
    pix_fmt: str | None = None,
    container: str | None = None,
    options: dict[str, str] | None = None,
    colors: dict[str, int] | None = None,
    audio: bool = False,
    index_first: bool = True,
) -> Path:
    """Writes frames uint8 `[n, h, w, 3 or 4]` as a video, and returns its path.

    `times` in seconds make the rate vary. `rotation` is by how many degrees players
    turn the frames counterclockwise, `mirrored` whether they exchange left and right
    after that. `colors` sets attributes of the stream, such as `colorspace`, and has
    frames converted to them. The container goes by the name, unless it is given.
    """
    # With the index first, a file that was cut short can still be read.
    movable = index_first and path.suffix in (".mp4", ".mov")
    start = {"movflags": "faststart"} if movable else {}
    with av.open(str(path), "w", format=container, options=start) as output:
        rate = Fraction(fps).limit_denominator(1001)
        stream: Any = output.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt or _PIXEL_FORMATS.get(codec, "yuv420p")
        stream.options = {**_OPTIONS.get(codec, {}), **(options or {})}
        stream.codec_context.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 90_000)
        if sample_aspect_ratio is not None:
            stream.codec_context.sample_aspect_ratio = sample_aspect_ratio
        if rotation is not None or mirrored:
            stream.set_display_rotation(rotation or 0, hflip=mirrored)
        for name, value in (colors or {}).items():
            setattr(stream.codec_context, name, value)
        sound = output.add_stream("pcm_s16le", rate=8000) if audio else None
        for i, array in enumerate(frames):
            frame = _encodable(array, stream.pix_fmt, colors or {})
            frame.pts, frame.time_base = i, 1 / rate
            if times is not None:
                frame.pts = round(times[i] * 90_000)
                frame.time_base = Fraction(1, 90_000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if sound is not None:
            output.mux(_silence(sound))
    return path


def write_audio(path: Path) -> Path:
    """Writes an audio file with a second of silence, and returns its path."""
    with av.open(str(path), "w") as output:
        output.mux(_silence(output.add_stream("pcm_s16le", rate=8000)))
    return path


def _encodable(array: np.ndarray, pix_fmt: str, colors: dict[str, int]):
    source = "rgba" if array.shape[-1] == 4 else "rgb24"
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format=source)
    converted = frame.reformat(
        format=pix_fmt,
        dst_colorspace=colors.get("colorspace"),
        dst_color_range=colors.get("color_range"),
    )
    for name, value in colors.items():
        setattr(converted, name, value)
    return converted


def _silence(stream: Any) -> list:
    frame = av.AudioFrame.from_ndarray(
        np.zeros((1, 8000), np.int16), format="s16", layout="mono"
    )
    frame.sample_rate, frame.pts = 8000, 0
    return stream.encode(frame) + stream.encode(None)
