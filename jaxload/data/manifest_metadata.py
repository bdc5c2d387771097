"""Metadata of a manifest file: columns, format, generations and shards."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.data.generation import Generation, parse_generations
from jaxload.data.shard import Shard
from jaxload.errors import InputError
from jaxload.files import parse_json
from jaxload.shapes.geometry import Sizes

FILE_NAME = "manifest.parquet"
METADATA_KEY = b"jaxload"
SIZES = ("frames", "height", "width")
FORMAT = 4
_REMEDY = (
    "restore it from a copy; or remove it and prepare the media into the same "
    "directory again, which keeps all shards"
)
_LATENTS = 3  # Format whose records hold latents instead of tokens.
_ONE_GENERATION = 2  # Likewise, without generations and without the column `start`.

ENTRY_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("start", pa.int64()),
        ("caption", pa.string()),
        ("text_tokens", pa.int32()),
        *((name, pa.int32()) for name in SIZES),
    ]
)
"""Columns of the manifest; the latent's sizes come last."""


class Metadata(NamedTuple):
    """Metadata of a manifest of any format."""

    patch: Sizes | None
    """Latent frames, rows and columns per token; None if records hold latents."""

    generations: tuple[Generation, ...]
    shards: tuple[Shard, ...]


def schema_with_metadata(
    generations: Sequence[Generation], shards: Sequence[Shard], patch: Sizes
) -> pa.Schema:
    """Returns the schema of a manifest, with the metadata to write."""
    content = {
        "format": FORMAT,
        "patch": patch,
        "generations": [dataclasses.asdict(generation) for generation in generations],
        "shards": [dataclasses.asdict(shard) for shard in shards],
    }
    text = json.dumps(content).encode()
    try:
        parse_json(text)  # Millions of ranges of masked rows could be too long to read.
    except ValueError as error:
        raise InputError(
            f"{FILE_NAME}: its metadata are too long ({error}); prepare the media into "
            "another --out"
        ) from error
    return ENTRY_SCHEMA.with_metadata({METADATA_KEY: text})


def read_generations(
    directory: Path, patch: Sizes
) -> tuple[tuple[Generation, ...], tuple[Shard, ...]]:
    """Reads the generations and all shards; both are empty if there is no manifest.

    Raises:
        InputError: The records do not hold tokens of this patch.
    """
    metadata = read_metadata(directory)
    if metadata is None:
        return (), ()
    if metadata.patch != patch:
        names = (
            "latents" if p is None else f"tokens of patch {'x'.join(map(str, p))}"
            for p in (patch, metadata.patch)
        )
        expected, found = names
        raise InputError(
            f"dataset {directory}: expected records of {expected}, got {found}; "
            f"convert it for this model: python -m jaxload.prepare --convert "
            f"{directory} --out NEW_DATASET, with the same --config and --set"
        )
    return metadata.generations, metadata.shards


def read_metadata(directory: Path) -> Metadata | None:
    """Reads the metadata of a manifest of any format; None if there is no manifest."""
    path = directory / FILE_NAME
    if not path.exists():
        return None
    try:
        file = pq.read_metadata(path)
        metadata = _parse(path, file.schema.to_arrow_schema())
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(path, error) from error
    num_records = sum(shard.num_records for shard in metadata.shards)
    if file.num_rows != num_records:
        raise InputError(
            f"{path}: expected a row per record, got {file.num_rows} rows for "
            f"{num_records} records; {_REMEDY}"
        )
    return metadata


def damaged(path: Path, error: Exception) -> InputError:
    """Returns the error to raise for a file that is not a manifest."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return InputError(f"{path}: not a manifest of jaxload ({reason}); {_REMEDY}")


def _parse(path: Path, schema: pa.Schema) -> Metadata:
    metadata = parse_json((schema.metadata or {})[METADATA_KEY])
    version = metadata["format"]
    if version not in (FORMAT, _LATENTS, _ONE_GENERATION):
        raise InputError(
            f"{path}: expected manifest format {FORMAT}, got {version!r:.80}; prepare "
            "the dataset again with this version"
        )
    expected, is_old = ENTRY_SCHEMA, version == _ONE_GENERATION
    if is_old:
        expected = expected.remove(expected.get_field_index("start"))
    if not schema.equals(expected):
        raise TypeError(f"columns {', '.join(map(str, schema))}")
    shards = tuple(Shard.parse(shard) for shard in metadata["shards"])
    if is_old:
        generation = {"fingerprint": metadata["fingerprint"], "masked": []}
        stored = [generation | {"num_shards": len(shards)}]
    else:
        stored = metadata["generations"]
    patch = _parse_patch(metadata["patch"]) if version == FORMAT else None
    return Metadata(patch, parse_generations(stored, shards), shards)


def _parse_patch(sizes: Sequence[int]) -> Sizes:
    frames, rows, columns = sizes
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError(f"a patch of {sizes!r:.80}")
    return frames, rows, columns
