"""Manifest of a dataset: its samples, its provenance and its shards."""

import bisect
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.errors import InputError
from jaxload.files import replaced
from jaxload.shapes.geometry import DEFAULT, Geometry
from jaxload.shapes.shape import Shape

FILE_NAME = "manifest.parquet"
_FORMAT = 2
METADATA_KEY = b"jaxload"
_BLOCK_BYTES = 65_536  # ArrayRecord pads its files to blocks of this size.
_ROW_GROUP = 1 << 16
_NUM_THREADS = 16  # Threads that check shards, to hide latency of network storage.
_SIZES = ("frames", "height", "width")
_MAX_SIZE = 1 << 20  # Bound on each size, so that three sizes pack into 64 bits.

ENTRY_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("caption", pa.string()),
        ("text_tokens", pa.int32()),
        *((name, pa.int32()) for name in _SIZES),
    ]
)
"""Columns of the manifest; the latent's sizes come last."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """Expected properties of one ArrayRecord file."""

    name: str
    num_records: int
    num_bytes: int
    digest: str
    """Digest of the first and the last block; the last has the offsets of records."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the manifest: metadata of a sample."""

    id: str
    source: str
    """Path of the sample's media file, relative to the media folder."""

    caption: str
    text_tokens: int
    """Number of tokens of the text embedding."""

    shape: Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A dataset: row i describes record i, counted through the shards in order.

    Columns are read on demand. A pickled copy reads the columns again in its process,
    because ten million rows are faster to read than to send.
    """

    directory: Path
    shards: tuple[Shard, ...]
    fingerprint: Mapping[str, Any]
    """Provenance of the dataset: codec, text encoder, source."""

    geometry: Geometry = DEFAULT
    """Codec strides and model patches, which relate pixels, latents and tokens."""

    def __len__(self) -> int:
        return self._ends[-1] if self.shards else 0

    def __getstate__(self) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names}

    def digest(self) -> str:
        """Returns 16 characters that identify the fingerprint and the shards."""
        content = [self.fingerprint, [shard.digest for shard in self.shards]]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def read_column(self, name: str) -> pa.ChunkedArray:
        """Reads one column of all rows."""
        return pq.read_table(self.directory / FILE_NAME, columns=[name])[name]

    @functools.cached_property
    def rows_by_shape(self) -> Mapping[Shape, np.ndarray]:
        """Rows of each shape, ascending."""
        table = pq.read_table(self.directory / FILE_NAME, columns=list(_SIZES))
        key = np.zeros(table.num_rows, np.int64)
        for name in _SIZES:
            key = key * _MAX_SIZE + table[name].to_numpy()
        # Small codes sort faster than 64-bit keys, which matters for ten million rows.
        encoded = pa.array(key).dictionary_encode()
        keys, codes = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        small = codes.astype(np.uint16) if len(keys) <= 1 << 16 else codes
        order = np.argsort(small, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(codes, minlength=len(keys)))
        groups = zip(keys.tolist(), np.split(order, ends[:-1]), strict=True)
        ordered = sorted(groups, key=_first)
        return {self._shape(key): rows for key, rows in ordered}

    def locate(self, row: int) -> str:
        """Describes the shard and record of a row, for error messages."""
        index = bisect.bisect_right(self._ends, row)
        shard = self.shards[index]
        record = row - (self._ends[index] - shard.num_records)
        return f"{self.directory / shard.name}, record {record}"

    def _shape(self, key: int) -> Shape:
        rest, width = divmod(key, _MAX_SIZE)
        frames, height = divmod(rest, _MAX_SIZE)
        try:
            return Shape(frames, height, width, self.geometry)
        except InputError as error:
            raise InputError(
                f"dataset {self.directory}: {error}; prepare it for this model"
            ) from error

    @functools.cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(shard.num_records for shard in self.shards))


def _first(group: tuple[int, np.ndarray]) -> int:
    return group[0]


def entry_table(entries: Sequence[Entry]) -> pa.Table:
    """Converts entries to a table with one row each."""
    columns = {
        "id": [e.id for e in entries],
        "source": [e.source for e in entries],
        "caption": [e.caption for e in entries],
        "text_tokens": [e.text_tokens for e in entries],
        "frames": [e.shape.frames for e in entries],
        "height": [e.shape.height for e in entries],
        "width": [e.shape.width for e in entries],
    }
    return pa.table(columns, schema=ENTRY_SCHEMA)


def write_manifest(
    directory: Path,
    entries: Iterable[pa.Table],
    shards: Sequence[Shard],
    fingerprint: Mapping[str, Any],
) -> None:
    """Writes the manifest of a directory that already holds the shards."""
    metadata = {
        "format": _FORMAT,
        "fingerprint": dict(fingerprint),
        "shards": [dataclasses.asdict(shard) for shard in shards],
    }
    schema = ENTRY_SCHEMA.with_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    with (
        replaced(directory / FILE_NAME) as partial,
        pq.ParquetWriter(partial, schema) as writer,
    ):
        for table in _grouped(entries):
            writer.write_table(table.cast(schema), row_group_size=_ROW_GROUP)


def _grouped(tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    """Merges tables into fewer, larger ones, because each becomes a row group."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def read_manifest(directory: Path, geometry: Geometry = DEFAULT) -> Manifest:
    """Reads a manifest and checks that the shards match it."""
    path = directory / FILE_NAME
    if not path.exists():
        raise InputError(
            f"dataset {directory}: expected {FILE_NAME} in it, found none; check "
            "data.path, or prepare the dataset with python -m jaxload.prepare"
        )
    try:
        file = pq.read_metadata(path)
        schema = file.schema.to_arrow_schema()
        metadata = json.loads((schema.metadata or {})[METADATA_KEY])
        if metadata["format"] != _FORMAT:
            raise InputError(
                f"{path}: expected manifest format {_FORMAT}, got "
                f"{metadata['format']}; prepare the dataset again with this version"
            )
        if schema.names != ENTRY_SCHEMA.names:
            raise KeyError(*(set(ENTRY_SCHEMA.names) ^ set(schema.names)))
        manifest = Manifest(
            directory=directory,
            shards=tuple(Shard(**shard) for shard in metadata["shards"]),
            fingerprint=metadata["fingerprint"],
            geometry=geometry,
        )
    except (pa.ArrowException, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path}: not a manifest of jaxload ({error!r}); prepare the dataset again"
        ) from error
    if file.num_rows != len(manifest):
        raise InputError(
            f"{path}: expected a row per record, got {file.num_rows} rows for "
            f"{len(manifest)} records; prepare the dataset again"
        )
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        # `map` keeps the order, so the error names the first invalid shard.
        for _ in pool.map(lambda shard: check_shard(directory, shard), manifest.shards):
            pass
    return manifest


def describe_shard(path: Path, num_records: int) -> Shard:
    """Describes a shard that was just written, for `check_shard` to compare with."""
    return Shard(
        name=path.name,
        num_records=num_records,
        num_bytes=path.stat().st_size,
        digest=_digest(path),
    )


def check_shard(directory: Path, shard: Shard) -> None:
    """Raises InputError if a shard is missing or differs from its description."""
    path = directory / shard.name
    again = "copy the shard again or prepare the dataset again"
    if not path.exists():
        raise InputError(
            f"{path}: the manifest names this shard, but it does not exist; {again}"
        )
    num_bytes = path.stat().st_size
    if num_bytes != shard.num_bytes:
        found = "truncated" if num_bytes < shard.num_bytes else "another file"
        raise InputError(
            f"{path}: expected {shard.num_bytes} bytes by the manifest, got "
            f"{num_bytes}: the shard is {found}; {again}"
        )
    digest = _digest(path)
    if digest != shard.digest:
        raise InputError(
            f"{path}: expected digest {shard.digest} by the manifest, got "
            f"{digest}: the shard is another file, or damaged; {again}"
        )


def _digest(path: Path) -> str:
    """Hashes the first and last block of a shard, to avoid reading terabytes."""
    with path.open("rb") as shard:
        content = shard.read(_BLOCK_BYTES)
        shard.seek(max(0, path.stat().st_size - _BLOCK_BYTES))
        return hashlib.sha256(content + shard.read()).hexdigest()[:16]
