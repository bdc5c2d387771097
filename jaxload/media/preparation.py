"""Describes the preparation of a dataset: inputs, options and fingerprint."""

import dataclasses
import functools
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxload.codecs.codec import load_codec
from jaxload.codecs.text_encoder import load_text_encoder
from jaxload.data.config import MAX_SOURCE_PIXELS
from jaxload.media.batch_encoder import BatchEncoder
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT, Geometry
from jaxload.shapes.shape import Shape

_VERSION = 2
"""Version of the records; increase it when the same media give different records."""

COMPATIBLE_VERSIONS = frozenset({1})
"""Earlier versions whose datasets can be updated. Records of version 1 differ only for
pictures far larger than their shape, which it decoded at full size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """Inputs, output directory and options of the preparation of one dataset."""

    media: Path
    out: Path
    codec: str
    text_encoder: str
    text_dim: int
    rules: ShapeRules
    geometry: Geometry
    max_shapes: int
    """Upper bound on the number of shapes to choose; ignored if `shapes` is given."""

    shapes: tuple[Shape, ...] | None = None
    """Shapes of a plan; None to choose them from the scanned files."""

    max_source_pixels: int = MAX_SOURCE_PIXELS
    """Most pixels of a picture or video frame; files with more are bad."""

    origin: str = "a folder of media"
    """Source of the media, recorded in the dataset's fingerprint."""

    def encoder(self) -> BatchEncoder:
        """Returns the codec and the text encoder, each loaded once per process."""
        return BatchEncoder(
            functools.partial(load_codec, self.codec),
            functools.partial(load_text_encoder, self.text_encoder, self.text_dim),
        )

    def fingerprint(self) -> dict[str, Any]:
        """Returns everything but media that the records depend on, for messages too."""
        plugins = self.encoder()
        codec, encoder = plugins.load_codec(), plugins.load_text_encoder()
        shapes = f"chosen, at most {self.max_shapes}"
        if self.shapes is not None:
            shapes = ", ".join(map(str, self.shapes))
        # Omitted for the defaults, because existing datasets without these entries must
        # keep their digests, which runs have recorded.
        geometry = {"geometry": str(self.geometry)}
        pixels = {"max_source_pixels": self.max_source_pixels}
        return {
            "version": _VERSION,
            "origin": self.origin,
            "codec": self.codec,
            "codec_name": codec.name,
            "channels": int(codec.channels),  # JSON has no integers of NumPy.
            **({} if self.geometry == DEFAULT else geometry),
            **({} if self.max_source_pixels == MAX_SOURCE_PIXELS else pixels),
            "text_encoder": self.text_encoder,
            "text_encoder_name": encoder.name,
            "text_dim": int(encoder.dim),
            "shapes": shapes,
            "rules": dataclasses.asdict(self.rules),
            **{f"library {name}": version(name) for name in ("av", "pillow")},
        }
