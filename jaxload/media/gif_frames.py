"""Measures the frames of a GIF without composing them.

A frame of a GIF is often a small rectangle that changes a large canvas. Pillow composes
the canvas for each frame: 151 frames of 8000x8000 take 27 s. Here, only the rectangle
is decoded, by the same decoder of Pillow, as a GIF of its own.
"""

import io
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from PIL import Image

from jaxload.media.frame import DamageError

_IMAGE, _EXTENSION, _CONTROL = b",", b"!", b"\xf9"


class GifFrame(NamedTuple):
    """Canvas size after a frame, duration of the frame, and its rectangle as a GIF."""

    height: int
    width: int
    duration_ms: float
    rectangle: bytes

    def decode(self) -> None:
        """Decodes the rectangle; raises any exception if it is damaged."""
        with Image.open(io.BytesIO(self.rectangle), formats=("GIF",)) as image:
            image.load()


def gif_frames(file: BinaryIO) -> Iterator[GifFrame]:
    """Yields the frames that Pillow finds in a GIF; raises DamageError as it would."""
    file.seek(0)
    header = _read(file, 13)
    width, height = _pair(header[6:10])
    _skip_palette(file, header[10])
    duration_ms = 0.0
    # The end of the data ends the animation like the final semicolon, as in Pillow.
    while (mark := file.read(1)) not in (b"", b";"):
        if mark == _EXTENSION:
            is_control = _read(file, 1) == _CONTROL
            blocks = _blocks(file)
            if is_control and blocks[:1] not in (b"", b"\0"):
                duration_ms = _duration_ms(blocks)
        elif mark == _IMAGE:
            place = _read(file, 9)
            left, top = _pair(place)
            columns, rows = _pair(place[4:])
            _skip_palette(file, place[8])
            width, height = max(width, left + columns), max(height, top + rows)
            picture = _read(file, 1) + _blocks(file)
            yield GifFrame(height, width, duration_ms, _alone(place, picture))
            duration_ms = 0.0


def _alone(place: bytes, picture: bytes) -> bytes:
    """Returns a GIF of one rectangle, without palette; a palette damages no pixel."""
    size, interlaced = place[4:8], place[8] & 64
    start = b"GIF89a" + size + bytes(3)
    return start + _IMAGE + bytes(4) + size + bytes([interlaced]) + picture


def _blocks(file: BinaryIO) -> bytes:
    """Reads blocks up to an empty one or the end; each begins with its length."""
    blocks = []
    while (length := file.read(1)) not in (b"", b"\0"):
        blocks += [length, file.read(length[0])]
    return b"".join([*blocks, length])


def _duration_ms(blocks: bytes) -> float:
    control = blocks[1 : 1 + blocks[0]]
    if len(control) < 3 + (control[:1] > b"" and control[0] & 1):
        raise DamageError("data are missing")
    return 10.0 * int.from_bytes(control[1:3], "little")


def _skip_palette(file: BinaryIO, flags: int) -> None:
    if flags & 128:
        file.read(3 << (flags & 7) + 1)


def _pair(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[:2], "little"), int.from_bytes(data[2:4], "little")


def _read(file: BinaryIO, num_bytes: int) -> bytes:
    data = file.read(num_bytes)
    if len(data) < num_bytes:
        raise DamageError("data are missing")
    return data
