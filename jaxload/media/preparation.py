"""Describes the preparation of a dataset: inputs, options and fingerprint."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxload.codecs.codec import is_causal, load_codec
from jaxload.codecs.text_encoder import load_text_encoder
from jaxload.data.config import MAX_SOURCE_PIXELS
from jaxload.media.batch_encoder import BatchEncoder
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT, Geometry
from jaxload.shapes.shape import Shape
from jaxload.shapes.size_cover import Size, stills_of

_VERSION = 3
"""Version of the records; increase it when the same media give different records."""


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
    sizes: tuple[Size, ...] | None = None
    """Heights and widths of latents, from a plan; None to choose at most
    `rules.max_sizes` from the scanned files."""

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
            **({"is_causal": True} if is_causal(codec) else {}),
            **({} if self.geometry == DEFAULT else geometry),
            **({} if self.max_source_pixels == MAX_SOURCE_PIXELS else pixels),
            "text_encoder": self.text_encoder,
            "text_encoder_name": encoder.name,
            "text_dim": int(encoder.dim),
            "sizes": "chosen" if self.sizes is None else in_words(self.sizes),
            "rules": dataclasses.asdict(self.rules),
            **{f"library {name}": version(name) for name in ("av", "pillow")},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """Codec and model that the records of a dataset are converted for."""

    codec: str
    rules: ShapeRules
    """Rules that fingerprints of earlier versions lack."""

    geometry: Geometry

    def fingerprint(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fingerprint of converted records, for `found` of the others."""
        dropped = ("shapes", "geometry", "is_causal")
        result = {name: found[name] for name in found if name not in dropped}
        if "version" in found:
            result["version"] = _VERSION
        if "rules" in found:
            result["rules"] = dataclasses.asdict(self.rules) | found["rules"]
        if "shapes" in found:
            result["sizes"] = in_words(planned_sizes(found)) or "chosen"
        if is_causal(load_codec(self.codec)):
            result["is_causal"] = True
        if self.geometry != DEFAULT:
            result["geometry"] = str(self.geometry)
        return result


def planned_sizes(fingerprint: Mapping[str, Any]) -> tuple[Size, ...]:
    """Returns the sizes that a plan gave to a dataset; none if they were chosen."""
    text = fingerprint.get("shapes", fingerprint.get("sizes", "chosen"))
    if text.startswith("chosen"):
        return ()
    any_patch = Geometry(patch=(1, 1, 1))
    # Earlier versions had shapes, whose frames come first.
    parts = [part.split("x")[-2:] for part in text.split(", ")]
    sizes = {Shape.parse("x".join(["1", *part]), any_patch).size for part in parts}
    return tuple(still.size for still in stills_of(sizes, any_patch))


def in_words(sizes: Iterable[Size]) -> str:
    """Lists sizes as in a fingerprint: `8x14, 6x18`."""
    return ", ".join(f"{height}x{width}" for height, width in sizes)
