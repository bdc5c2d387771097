"""Reads the frames of images, animations and videos through one interface.

The type of a file is detected from its bytes, not from its name: Pillow is tried first,
then FFmpeg. `scan` and `read_frames` share their code, so both see the same frames.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from jaxload.data.config import MAX_SOURCE_PIXELS
from jaxload.media import containers, image_frames, video_frames
from jaxload.media.frame import DamageError, Frame, MediaError, Note, Want

__all__ = ["Frame", "MediaError", "Scan", "read_frames", "scan"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """Number, size and duration of the frames that decode in a file."""

    num_frames: int
    """Frames that decode before any damage."""

    height: int
    """Height as displayed: upright, in square pixels, rounded."""

    width: int

    seconds: float
    """Seconds from the first frame to the last; 0.0 for a single frame."""

    damage: str = ""
    """Description of the damage; empty if the whole file decodes."""

    notes: tuple[Note, ...] = ()
    """Features that this project does not handle, such as HDR; not stored in tables."""

    @property
    def fps(self) -> float:
        """Mean frame rate, measured; 0.0 for a single frame."""
        return (self.num_frames - 1) / self.seconds if self.seconds else 0.0


def scan(path: Path, *, max_pixels: int = MAX_SOURCE_PIXELS) -> Scan:
    """Decodes a whole file to measure it; raises MediaError if no frame decodes.

    A file with more than `max_pixels` in a frame raises MediaError, too.
    """
    frames = _decode(path, Want(max_pixels=max_pixels, is_scan=True))
    first = next(frames)
    num_frames, seconds, damage = 1, 0.0, ""
    notes = dict.fromkeys(first.notes)
    try:
        for frame in frames:
            num_frames, seconds = num_frames + 1, frame.time
            notes.update(dict.fromkeys(frame.notes))
    except DamageError as error:
        damage = f"damaged after frame {num_frames}: {error}"
    return Scan(
        num_frames=num_frames,
        height=first.height,
        width=first.width,
        seconds=seconds,
        damage=damage,
        notes=tuple(notes),
    )


def read_frames(
    path: Path,
    *,
    max_pixels: int = MAX_SOURCE_PIXELS,
    size: tuple[int, int] | None = None,
    num_frames: int | None = None,
) -> Iterator[Frame]:
    """Yields the frames that `scan` counts; raises MediaError if no frame decodes.

    Reads no further than `num_frames`, if given. Without it, a damaged GIF may have
    more frames than `scan` counts, because Pillow takes what follows a frame without
    data for its pixels.

    If the caller scales frames to cover a height and width `size`, images that are much
    larger are decoded at a reduced size that is still at least three times as large.

    Memory holds only the frames that the decoder needs. A yielded frame stays valid
    after the next frame is read and after the file is closed. Frames of one file share
    a colour converter, so only one thread at a time may call their `rgb`.
    """
    frames = _decode(path, Want(max_pixels=max_pixels, size=size))
    try:
        yield from itertools.islice(frames, num_frames)
    except DamageError:
        return


def _decode(path: Path, want: Want) -> Iterator[Frame]:
    """Yields at least one frame, all of one size; raises DamageError at any damage."""
    try:
        if not path.is_file():
            raise MediaError("cannot be read", "not a file")
        if path.stat().st_size == 0:
            raise MediaError("empty file")
        file = path.open("rb")
    except OSError as error:
        raise MediaError("cannot be read", error.strerror or str(error)) from error
    with file:
        image = image_frames.open_image(file, want)
        damaged = image_frames.DAMAGED if image else containers.DAMAGED
        if image:
            frames = image_frames.decode(image, file, want)
        else:
            frames = video_frames.decode(file, want)
        first = None
        try:
            for frame in frames:
                first = first or frame
                if (frame.height, frame.width) != (first.height, first.width):
                    raise DamageError(
                        f"{first.width}x{first.height} becomes "
                        f"{frame.width}x{frame.height}"
                    )
                yield frame
        except DamageError as error:
            if first is None:
                raise MediaError(damaged, str(error)) from error
            raise
        if first is None:
            raise MediaError(damaged, "no frame found")
