"""Config section `data`."""

import dataclasses
from dataclasses import field
from pathlib import Path

from jaxload.errors import InputError
from jaxload.fields import RESUMABLE
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where samples come from and how they are read."""

    # A resume may move the dataset: the plan records which dataset it must be.
    path: str = field(metadata=RESUMABLE)
    """Directory of the dataset: ArrayRecord shards and a manifest."""

    codec: str = "haar"
    """Codec that made the latents: a built-in name, or module:attribute."""

    text_encoder: str = "hashed-ngrams"
    """Encoder that made the text embeddings: a built-in name, or module:attribute."""

    random_shapes: tuple[str, ...] = ()
    """Latent shapes, frames x height x width, of the random samples that a dry run
    plans for where there is no dataset."""

    num_workers: int = field(default=0, metadata=RESUMABLE)
    """Reader processes; more read faster and take memory. With 0, threads of the
    training process read."""

    num_threads: int = field(default=2, metadata=RESUMABLE)
    """Reader threads per process that reads; more hide slow storage and take cores."""

    num_prefetch: int = field(default=4, metadata=RESUMABLE)
    """Micro-batches for each group of devices that a reading process prefetches to the
    host; more hide slow reads and take host memory."""

    def __post_init__(self):
        for text in self.random_shapes:
            try:
                Shape.parse(text)
            except InputError as error:
                raise InputError(f"data.random_shapes: {error}") from error
        for name, least in (
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
        """The dataset's directory."""
        return Path(self.path)
