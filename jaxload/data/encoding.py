"""From a media file to the records of its clips."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxload.data.codec import Codec
from jaxload.data.cutting import Clip, Cutting
from jaxload.data.frames import MediaError, read_frames
from jaxload.data.manifest import Entry
from jaxload.data.record import Record, encode_record
from jaxload.data.resample import resample
from jaxload.data.resize import fit
from jaxload.data.text import TextEncoder


def encode_file(
    path: Path,
    name: str,
    caption: str,
    cutting: Cutting,
    *,
    codec: Codec,
    text_encoder: TextEncoder,
) -> Iterator[tuple[Entry, bytes]]:
    """Decodes a file once more and encodes each of its clips, one at a time."""
    if not cutting.clips:
        return
    text = text_encoder.encode(caption)
    for clip, video in _read_clips(path, cutting):
        record = Record(latent=codec.encode(video), text=text)
        found = record.latent.shape[:3]
        if found != (clip.shape.frames, clip.shape.height, clip.shape.width):
            raise ValueError(
                f"codec {codec.name} made a latent of {found} from a clip of "
                f"{video.shape[:3]}, expected {clip.shape}"
            )
        entry = Entry(
            id=clip.id,
            source=name,
            caption=caption,
            text_tokens=len(text),
            shape=clip.shape,
        )
        yield entry, encode_record(record)


def _read_clips(path: Path, cutting: Cutting) -> Iterator[tuple[Clip, np.ndarray]]:
    """The frames of each clip, in the size of its shape."""
    frames = resample(read_frames(path), rate=cutting.rate, count=cutting.num_taken)
    position = 0
    for clip in cutting.clips:
        num_frames, height, width = clip.shape.pixels
        video = np.empty((num_frames, height, width, 3), np.uint8)
        # Frames before it belong to clips that were left out, or were beyond a shape.
        for _ in range(clip.first - position):
            next(frames, None)
        for i in range(num_frames):
            frame = next(frames, None)
            if frame is None:
                raise MediaError(
                    "changed while it was prepared",
                    f"frame {clip.first + i} of {cutting.num_taken} is not there",
                )
            displayed = (frame.height, frame.width)
            video[i] = fit(frame.rgb(), displayed=displayed, size=(height, width))
        position = clip.first + num_frames
        yield clip, video
