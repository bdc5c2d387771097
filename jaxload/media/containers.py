"""Opens containers of video with FFmpeg and sets up their decoders."""

import errno
import os
from typing import Any, BinaryIO

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition
from av.video.stream import VideoStream

from jaxload.media.frame import MediaError, Want, check_pixels

DAMAGED = "damaged video"
NOT_MEDIA = "not an image or video"

# Containers of video. Excluded are formats that draw text (tty), and formats that open
# other files or network addresses (concat, hls, dash, sdp), which would be unsafe.
_CONTAINERS = (
    *("mov", "mp4", "matroska", "webm", "avi", "mpegts", "mpeg", "mpegvideo", "flv"),
    *("asf", "ogg", "mxf", "nut", "dv", "rm", "gxf", "wtv", "ivf", "obu", "av1"),
    *("h261", "h263", "h264", "hevc", "vvc", "m4v", "vc1", "dirac", "mjpeg"),
    *("yuv4mpegpipe", "flic", "nsv", "swf"),
)
_OPTIONS = {"format_whitelist": ",".join(_CONTAINERS), "protocol_whitelist": ""}

# HEIC photos consist of tiles, each of which would pass for a video of one frame.
_PHOTO_BRANDS = frozenset({"heic", "heix", "heim", "heis", "mif1"})
_AVIF = "avif"
_NO_VIDEO = (
    Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.dependent
)

# The decoder of TIFF would stop at odd tags, as FFmpeg's own encoder writes. Damaged
# pixels are errors anyway.
_CHECKS = {"tiff": "crccheck"}

# Offset and signature of video files, to tell a damaged video from another file.
_MATROSKA, _MATROSKA_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_MARKS = ((4, b"ftyp"), (0, _MATROSKA), (8, b"AVI "))


class _Content:
    """Hides the name of a file, from which FFmpeg would guess the format."""

    def __init__(self, file: BinaryIO):
        self.read = file.read
        self.tell = file.tell
        self._file = file

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves in the file; a negative result is an error, as FFmpeg expects.

        In a damaged file, FFmpeg may look for an index before the start of the file. It
        goes on without the index, if an error is returned and not raised.
        """
        try:
            return self._file.seek(offset, whence)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return -errno.EINVAL


def open_video(file: BinaryIO) -> InputContainer:
    """Opens a video; raises MediaError if FFmpeg knows no container of this content."""
    file.seek(0)
    try:
        return av.open(_Content(file), "r", options=_OPTIONS, metadata_errors="replace")
    except (FFmpegError, ValueError) as error:
        file.seek(0)
        head = file.read(16)
        known = any(head[at:].startswith(mark) for at, mark in _MARKS)
        raise MediaError(DAMAGED if known else NOT_MEDIA, words(error)) from error


def stated_end(file: BinaryIO) -> int:
    """Returns the file size in an AVI, Matroska or WebM header; 0 if there is none."""
    position = file.tell()
    file.seek(0)
    head = file.read(4096)
    file.seek(position)
    if head.startswith(b"RIFF"):
        return 8 + int.from_bytes(head[4:8], "little")
    start = head.find(_MATROSKA_SEGMENT) + 4
    if not head.startswith(_MATROSKA) or not 4 < start < len(head) - 8:
        return 0
    # The size takes one byte more than its first byte has leading zero bits.
    length = 9 - head[start].bit_length()
    unknown = (1 << 7 * length) - 1
    size = int.from_bytes(head[start : start + length], "big") & unknown
    return 0 if size == unknown else start + length + size


def video_stream(container: InputContainer, want: Want) -> VideoStream:
    """Returns the first video stream that is not a cover picture, set up to decode."""
    brand = container.metadata.get("major_brand", "").strip()
    if brand in _PHOTO_BRANDS:
        raise MediaError("HEIC photo", "convert it to JPEG or PNG")
    if brand == _AVIF:  # Pillow opens every good one.
        raise MediaError("damaged image", "AVIF whose picture is not found")
    videos = [s for s in container.streams.video if not s.disposition & _NO_VIDEO]
    if not len(container.streams):
        raise MediaError(DAMAGED, "no stream found")
    if not videos:
        types = sorted({stream.type for stream in container.streams})
        raise MediaError("no video stream", "only " + ", ".join(types))
    stream = videos[0]
    if stream.codec_context is None:
        raise MediaError("unknown video codec")
    check_pixels(stream.height, stream.width, want)
    # One thread, because processes that decode other files use the other cores. Each
    # further thread would hold one more frame and report errors one frame later.
    stream.codec_context.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    stream.codec_context.options = {
        # Stop at errors; by default, the decoder conceals them.
        "err_detect": _CHECKS.get(stream.codec_context.name, "crccheck+explode"),
        # Refuse frames that grow in the middle of the stream before they take memory.
        # Decoders add margins to frames, so this limit is looser than `check_pixels`.
        "max_pixels": str(2 * want.max_pixels + (1 << 20)),
    }
    return stream


def words(error: Any) -> str:
    """Returns the message of an error of PyAV."""
    # str(error) would add an error number and a placeholder for the file name.
    return getattr(error, "strerror", None) or str(error)
