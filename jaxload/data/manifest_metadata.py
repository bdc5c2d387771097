"""Metadata of a manifest file: columns, format, generations and shards."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.data.generation import Generation, parse_generations
from jaxload.data.shard import Shard
from jaxload.errors import InputError
from jaxload.files import parse_json

FILE_NAME = "manifest.parquet"
METADATA_KEY = b"jaxload"
SIZES = ("frames", "height", "width")
FORMAT = 3
_REMEDY = (
    "restore it from a copy; or remove it and prepare the media into the same "
    "directory again, which keeps all shards"
)
_ONE_GENERATION = 2  # Format without generations and without the column `start`.

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


def schema_with_metadata(
    generations: Sequence[Generation], shards: Sequence[Shard]
) -> pa.Schema:
    """Returns the schema of a manifest, with the metadata to write."""
    content = {
        "format": FORMAT,
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
    directory: Path,
) -> tuple[tuple[Generation, ...], tuple[Shard, ...]]:
    """Reads the generations and all shards; both are empty if there is no manifest."""
    path = directory / FILE_NAME
    if not path.exists():
        return (), ()
    try:
        file = pq.read_metadata(path)
        generations, shards = _parse(path, file.schema.to_arrow_schema())
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(path, error) from error
    num_records = sum(shard.num_records for shard in shards)
    if file.num_rows != num_records:
        raise InputError(
            f"{path}: expected a row per record, got {file.num_rows} rows for "
            f"{num_records} records; {_REMEDY}"
        )
    return generations, shards


def damaged(path: Path, error: Exception) -> InputError:
    """Returns the error to raise for a file that is not a manifest."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return InputError(f"{path}: not a manifest of jaxload ({reason}); {_REMEDY}")


def _parse(
    path: Path, schema: pa.Schema
) -> tuple[tuple[Generation, ...], tuple[Shard, ...]]:
    metadata = parse_json((schema.metadata or {})[METADATA_KEY])
    is_old = metadata["format"] == _ONE_GENERATION
    if metadata["format"] != FORMAT and not is_old:
        raise InputError(
            f"{path}: expected manifest format {FORMAT}, got "
            f"{metadata['format']!r:.80}; prepare the dataset again with this version"
        )
    expected = ENTRY_SCHEMA
    if is_old:
        expected = expected.remove(expected.get_field_index("start"))
    if not schema.equals(expected):
        raise TypeError(f"columns {', '.join(map(str, schema))}")
    shards = tuple(Shard.parse(shard) for shard in metadata["shards"])
    if is_old:
        fingerprint = metadata["fingerprint"]
        return (Generation(fingerprint=fingerprint, num_shards=len(shards)),), shards
    return parse_generations(metadata["generations"], shards), shards
