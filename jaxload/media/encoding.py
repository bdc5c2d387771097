"""Encodes the clips of a media file into records."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxload.codecs.codec import Codec
from jaxload.codecs.text import TextEncoder
from jaxload.data.manifest import Entry
from jaxload.data.record import BFLOAT16, Record, encode_record
from jaxload.media.cutting import Clip, Cutting
from jaxload.media.frames import MediaError, read_frames
from jaxload.media.resample import resample
from jaxload.media.resize import fit

CHANGED = "changed while it was prepared"


def encode_file(
    path: Path,
    name: str,
    caption: str,
    cutting: Cutting,
    *,
    codec: Codec,
    text_encoder: TextEncoder,
) -> Iterator[tuple[Entry, bytes]]:
    """Decodes a file again and yields an entry and a record for each of its clips."""
    if not cutting.clips:
        return
    text = text_encoder.encode(caption)
    _check(f"text encoder {text_encoder.name}", text, (len(text), text_encoder.dim))
    for clip, video in _read_clips(path, cutting):
        shape = clip.shape
        record = Record(latent=codec.encode(video), text=text)
        expected = (shape.frames, shape.height, shape.width, codec.channels)
        _check(f"codec {codec.name}", record.latent, expected)
        entry = Entry(
            id=clip.id,
            source=name,
            caption=caption,
            text_tokens=len(text),
            shape=clip.shape,
        )
        yield entry, encode_record(record)


def _check(who: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Refuses an array of another shape, or with values beyond bfloat16."""
    if array.shape != shape:
        raise ValueError(f"{who} made {array.shape}, expected {shape}")
    if not np.isfinite(array.astype(BFLOAT16).astype(np.float32)).all():
        raise ValueError(f"{who} made numbers that are not finite in bfloat16")


def _read_clips(path: Path, cutting: Cutting) -> Iterator[tuple[Clip, np.ndarray]]:
    """Yields each clip with its frames, resized to its shape."""
    frames = resample(read_frames(path), rate=cutting.rate, count=cutting.num_taken)
    position = 0
    for clip in cutting.clips:
        num_frames, height, width = clip.shape.pixels
        video = np.empty((num_frames, height, width, 3), np.uint8)
        # Skips frames of clips that were left out, and frames beyond a shape.
        for _ in range(clip.first - position):
            next(frames, None)
        for i in range(num_frames):
            frame = next(frames, None)
            if frame is None:
                raise MediaError(
                    CHANGED,
                    f"frame {clip.first + i} of {cutting.num_taken} is not there",
                )
            displayed = (frame.height, frame.width)
            video[i] = fit(frame.rgb(), displayed=displayed, size=(height, width))
        position = clip.first + num_frames
        yield clip, video
