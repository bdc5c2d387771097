"""Decodes the frames of videos with FFmpeg.

The frame count and frame rate in a container's header are not trusted: frames are
decoded and counted, and their time stamps are used.

A video ends at its first damage, because later frames depend on damaged ones. Damage is
detected if data are missing, or if a decoder fails or reports that it had to guess.
There are two exceptions. A transport stream does not state its length, so missing data
at its end go unnoticed. Changed bytes that still decode go unnoticed too, because no
common codec has checksums: MPEG-4 detects most changes, H.264 and HEVC many, MJPEG few
and VP9 none.

A video that was cut from a longer one without re-encoding begins with its first frame
that does not depend on removed frames.

Videos are not deinterlaced, HDR is not tone-mapped and wide colours are not converted;
frames with any of these carry a note. Transparency is read only if it
is part of the pixel format, which it is not in VP8 and VP9.
"""

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import BinaryIO

import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import (
    ColorPrimaries,
    Colorspace,
    ColorTrc,
    VideoReformatter,
)
from av.video.stream import VideoStream

from jaxload.media.containers import open_video, stated_end, video_stream, words
from jaxload.media.frame import (
    DamageError,
    Frame,
    MediaError,
    Note,
    Turn,
    Want,
    check_pixels,
    turned,
)

# Values of AVColorSpace; FFmpeg cannot convert from any other value.
_UNKNOWN_MATRIX = frozenset({0, 2, 3})
_KNOWN_MATRIX = frozenset({1, 4, 5, 6, 7, 9})

_MAX_RATIO = 100  # Of the sides of a pixel. Anamorphic video has pixels of 2:1.

HDR = "HDR, not tone-mapped"
WIDE_COLORS = "wide colours, taken for BT.709"
INTERLACED = "interlaced, not deinterlaced"
_HDR: dict[int, str] = {
    ColorTrc.SMPTE2084: "PQ (SMPTE ST 2084)",
    ColorTrc.ARIB_STD_B67: "HLG (ARIB STD-B67)",
}

# By the number of quarter turns counterclockwise.
_TURNS: tuple[Turn, ...] = (
    (False, False, False),
    (True, True, False),
    (False, True, True),
    (True, False, True),
)


def decode(file: BinaryIO, want: Want) -> Iterator[Frame]:
    """Yields the frames of the first video stream; raises DamageError at damage."""
    with open_video(file) as container:
        stream = video_stream(container, want)
        ratio = _pixel_ratio(stream)
        time_base = stream.time_base or Fraction(0)
        clock = _Clock(stream.average_rate or stream.guessed_rate)
        reformatter = VideoReformatter()  # Shared, to reuse its tables.
        is_cut = stated_end(file) > container.size
        for frame, drained in _decoded(container, stream, is_cut=is_cut):
            check_pixels(frame.height, frame.width, want)
            _check_colors(frame)
            stamp = None if frame.pts is None else frame.pts * time_base
            orientation = _orientation(frame)
            size = frame.height, max(1, round(frame.width * ratio))
            height, width = size[::-1] if orientation[0] else size
            yield Frame(
                time=clock.time(stamp, drained=drained),
                height=height,
                width=width,
                notes=_notes(frame),
                pixels=functools.partial(_rgb, frame, orientation, reformatter),
            )


def _pixel_ratio(stream: VideoStream) -> Fraction:
    """Returns the width of a stored pixel, as displayed, relative to its height."""
    ratio = stream.sample_aspect_ratio or Fraction(1)  # 0 or None if unknown.
    if not Fraction(1, _MAX_RATIO) <= ratio <= _MAX_RATIO:
        raise MediaError(
            "invalid shape of pixels",
            f"{ratio.numerator}:{ratio.denominator}; expected 1:{_MAX_RATIO} to "
            f"{_MAX_RATIO}:1",
        )
    return ratio


def _decoded(
    container: InputContainer, stream: VideoStream, *, is_cut: bool
) -> Iterator[tuple[VideoFrame, bool]]:
    """Yields each frame, and whether the decoder returned it after the data ended."""
    started = False
    try:
        for num_packets, packet in _packets(container, stream):
            ended = packet is None
            # An index that lists more packets is reliable, unlike a stated frame count.
            short = ended and (is_cut or num_packets < len(stream.index_entries))
            missing = short or (packet is not None and packet.is_corrupt)
            for frame in _decode(stream, None if missing else packet, started=started):
                if frame.is_corrupt and started:
                    raise DamageError("the decoder had to guess")
                if frame.is_corrupt:
                    continue
                started = True
                yield frame, ended or missing
            if missing:
                raise DamageError("data are missing")
    except (FFmpegError, ValueError) as error:
        raise DamageError(words(error)) from error


def _packets(
    container: InputContainer, stream: VideoStream
) -> Iterator[tuple[int, Packet | None]]:
    """Yields each packet that has data, after the number of packets before it.

    The last item is the number of all packets, and None to flush the decoder.
    """
    num_packets = 0
    # An empty packet, as in Theora, repeats the frame before it. The time stamps of the
    # other frames tell how long that frame is shown, so the packet adds nothing. PyAV
    # appends one more empty packet, by which it would flush the decoder.
    for num_packets, packet in enumerate(container.demux(stream)):
        if packet.size:
            yield num_packets, packet
    yield num_packets, None


def _decode(
    stream: VideoStream, packet: Packet | None, *, started: bool
) -> list[VideoFrame]:
    """Decodes a packet, or the frames still buffered if it is None.

    Before the first frame of the stream was decoded (`started` is False), returns an
    empty list for a packet that cannot be decoded and is no key frame: an editor that
    cut the file has removed the frames that it depends on. Other errors are raised.
    """
    try:
        return stream.decode(packet)
    except FFmpegError:
        # A clip cut from a longer video without re-encoding may have frames after its
        # first key frame that are shown before it and depend on removed frames. Their
        # failure is not damage, but the failure of a key frame is.
        if started or packet is None or packet.is_keyframe:
            raise
        return []


class _Clock:
    """Computes times of frames from time stamps, or from the frame rate if invalid."""

    def __init__(self, rate: Fraction | None):
        self._rate = rate
        self._start = Fraction(0)
        self._last: Fraction | None = None
        self._longest_step = Fraction(0)

    def time(self, stamp: Fraction | None, *, drained: bool) -> float:
        """Returns the seconds from the first frame to this one, strictly increasing.

        `drained` is true if the decoder returned the frame only after the data ended.
        """
        if self._last is None:
            self._start = self._last = stamp or Fraction(0)
            return 0.0
        if stamp is None or stamp <= self._last:
            if not self._rate:
                raise MediaError("no time stamps", "and no frame rate")
            stamp = self._last + 1 / self._rate
        step = stamp - self._last
        # A decoder keeps a frame until the frames shown before it are decoded. If the
        # data end earlier, the decoder returns that frame anyway, after a gap in time.
        if drained and 0 < 3 * self._longest_step < 2 * step:
            raise DamageError("data are missing")
        self._longest_step = max(self._longest_step, step)
        self._last = stamp
        return float(stamp - self._start)


def _orientation(frame: VideoFrame) -> Turn:
    try:
        data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:
        # PyAV lists no data of a frame that has a type unknown to it, such as EXIF in
        # pictures of a camera. It still tells the angle, but not whether to mirror.
        return _TURNS[round(frame.rotation / 90) % 4]
    if data is None:
        return False, False, False
    matrix = np.frombuffer(bytes(data), np.int32)
    # The pixel stored at (x, y) is shown at (a x + c y, b x + d y).
    a, b, c, d = (int(matrix[i]) for i in (0, 1, 3, 4))
    if abs(b) > abs(a):
        return True, b < 0, c < 0
    return False, d < 0, a < 0


def _rgb(
    frame: VideoFrame,
    orientation: Turn,
    reformatter: VideoReformatter,
) -> np.ndarray:
    """Returns the pixels `[h, w, 3]`, upright, blended with white if transparent."""
    has_alpha = any(component.is_alpha for component in frame.format.components)
    converted = reformatter.reformat(
        frame,
        format="rgba" if has_alpha else "rgb24",
        src_colorspace=_matrix(frame),
        dst_colorspace=_matrix(frame),
        threads=1,
    )
    array = converted.to_ndarray()
    if has_alpha:
        alpha = array[..., 3:].astype(np.uint16)
        array = ((array[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(
            np.uint8
        )
    return np.ascontiguousarray(turned(array, orientation))


def _notes(frame: VideoFrame) -> tuple[Note, ...]:
    notes = []
    if frame.color_trc in _HDR:
        notes.append((HDR, _HDR[frame.color_trc]))
    elif frame.color_primaries == ColorPrimaries.BT2020:
        notes.append((WIDE_COLORS, "primaries of BT.2020"))
    if frame.interlaced_frame:
        notes.append((INTERLACED, ""))
    return tuple(notes)


def _check_colors(frame: VideoFrame) -> None:
    if frame.colorspace not in _KNOWN_MATRIX | _UNKNOWN_MATRIX:
        raise MediaError("unsupported colours", f"matrix {frame.colorspace}")


def _matrix(frame: VideoFrame) -> int:
    """Returns the YUV to RGB matrix; if the frame has none, the one players assume."""
    if frame.colorspace in _KNOWN_MATRIX:
        return frame.colorspace
    large = frame.width >= 1280 or frame.height > 576
    return Colorspace.ITU709 if large else Colorspace.ITU601
