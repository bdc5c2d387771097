"""Config section `data`."""

import dataclasses
from dataclasses import field
from pathlib import Path

from jaxload.errors import InputError
from jaxload.fields import RESUMABLE
from jaxload.shapes.shape import parse_sizes

MAX_SOURCE_PIXELS = 1 << 27
"""Default of `data.max_source_pixels`: 134 million, above 8K video (33 million) and
photos of 108 megapixels."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Path of the dataset, its codec and text encoder, and the options for reading."""

    # The dataset may move before a resume, because the plan records its digest.
    path: str = field(metadata=RESUMABLE)
    """Directory of the dataset: ArrayRecord shards and a manifest."""

    codec: str = "haar"
    """Codec that made the latents: a built-in name, or module:attribute."""

    text_encoder: str = "hashed-ngrams"
    """Encoder that made the text embeddings: a built-in name, or module:attribute."""

    max_source_pixels: int = field(default=MAX_SOURCE_PIXELS, metadata=RESUMABLE)
    """Most pixels, height times width, of a picture or video frame that `prepare`
    decodes; files with more are bad. More admits larger photos and takes memory: up to
    4 bytes per pixel of a picture in each worker, and several times that for
    animations, progressive JPEG and video."""

    follow_links: bool = field(default=False, metadata=RESUMABLE)
    """True to make `prepare` follow links that lead out of the media folder. Includes
    the media of folders that consist of links, and reads any file that a link names, so
    leave it False for folders from elsewhere."""

    random_shapes: tuple[str, ...] = ()
    """Latent shapes, frames x height x width, of random samples for a dry run without
    a dataset."""

    num_workers: int = field(default=0, metadata=RESUMABLE)
    """Number of reader processes. More read faster, and take cores and host memory.
    With 0, threads of the training process read."""

    num_threads: int = field(default=2, metadata=RESUMABLE)
    """Number of reader threads per reading process. More hide slow storage, and take
    cores."""

    num_prefetch: int = field(default=4, metadata=RESUMABLE)
    """Micro-batches that each reading process prefetches to host memory, per group of
    devices. More hide slow reads, and take host memory."""

    def __post_init__(self):
        for text in self.random_shapes:
            try:
                parse_sizes(text)
            except InputError as error:
                raise InputError(f"data.random_shapes: {error}") from error
        for name, least in (
            ("max_source_pixels", 1),
            ("num_workers", 0),
            ("num_threads", 1),
            ("num_prefetch", 1),
        ):
            if getattr(self, name) < least:
                raise InputError(
                    f"data.{name}={getattr(self, name)}: expected {least} or more"
                )

    @property
    def directory(self) -> Path:
        """Directory of the dataset."""
        return Path(self.path)
