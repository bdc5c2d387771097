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
from jaxload.shapes.shape import Shape

FILE_NAME = "manifest.parquet"
_FORMAT = 2
METADATA_KEY = b"jaxload"
_BLOCK_BYTES = 65_536  # ArrayRecord pads its files to blocks of this size.
_ROW_GROUP = 1 << 16
_NUM_THREADS = 16  # Shards checked at once, to hide the latency of network storage.
_SIZES = ("frames", "height", "width")
_MAX_SIZE = 1 << 20  # Limit of each size: three sizes pack into 64 bits.

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
    """One ArrayRecord file, and the properties that it must have."""

    name: str
    num_records: int
    num_bytes: int
    digest: str
    """Digest of the first block and of the last, which holds the offsets of records."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the manifest: metadata of a sample."""

    id: str
    source: str
    """Path of the sample's media file, relative to the media folder."""

    caption: str
    text_tokens: int
    """Length of the text embedding."""

    shape: Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A dataset. Row i describes record i, counted through the shards in order.

    Columns are read on demand. A copy sent to another process reads the columns there,
    because ten million rows are faster to read than to send.
    """

    directory: Path
    shards: tuple[Shard, ...]
    fingerprint: Mapping[str, Any]
    """Provenance of the dataset: codec, text encoder, source."""

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
        # Sorting small codes instead of the 64-bit keys is fast for ten million rows.
        encoded = pa.array(key).dictionary_encode()
        keys, codes = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        small = codes.astype(np.uint16) if len(keys) <= 1 << 16 else codes
        order = np.argsort(small, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(codes, minlength=len(keys)))
        groups = zip(keys.tolist(), np.split(order, ends[:-1]), strict=True)
        return {_unpacked(key): rows for key, rows in sorted(groups, key=_first)}

    def locate(self, row: int) -> str:
        """Names the shard and the record of a row, for messages."""
        index = bisect.bisect_right(self._ends, row)
        shard = self.shards[index]
        record = row - (self._ends[index] - shard.num_records)
        return f"{self.directory / shard.name}, record {record}"

    @functools.cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(shard.num_records for shard in self.shards))


def _first(group: tuple[int, np.ndarray]) -> int:
    return group[0]


def _unpacked(key: int) -> Shape:
    rest, width = divmod(key, _MAX_SIZE)
    frames, height = divmod(rest, _MAX_SIZE)
    return Shape(frames, height, width)


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
    """Yields the rows in fewer, larger tables, since each becomes a row group."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def read_manifest(directory: Path) -> Manifest:
    """Reads a manifest and checks that the shards match it."""
    path = directory / FILE_NAME
    if not path.exists():
        raise InputError(
            f"data set {directory}: expected {FILE_NAME} in it, found none; check "
            "data.path, or prepare the data set with python -m jaxload.prepare"
        )
    try:
        file = pq.read_metadata(path)
        schema = file.schema.to_arrow_schema()
        metadata = json.loads((schema.metadata or {})[METADATA_KEY])
        if metadata["format"] != _FORMAT:
            raise InputError(
                f"{path}: expected manifest format {_FORMAT}, got "
                f"{metadata['format']}; prepare the data set again with this version"
            )
        if schema.names != ENTRY_SCHEMA.names:
            raise KeyError(*(set(ENTRY_SCHEMA.names) ^ set(schema.names)))
        manifest = Manifest(
            directory=directory,
            shards=tuple(Shard(**shard) for shard in metadata["shards"]),
            fingerprint=metadata["fingerprint"],
        )
    except (pa.ArrowException, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path}: not a manifest of jaxload ({error!r}); prepare the data set again"
        ) from error
    if file.num_rows != len(manifest):
        raise InputError(
            f"{path}: {file.num_rows} rows for {len(manifest)} records in its shards; "
            "prepare the data set again"
        )
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        # In order, so that the error names the first shard that is wrong.
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
    """Refuses a shard that is missing or differs from its description."""
    path = directory / shard.name
    again = "copy the shard again or prepare the data set again"
    if not path.exists():
        raise InputError(
            f"{path}: the manifest names this shard, but it does not exist; {again}"
        )
    num_bytes = path.stat().st_size
    if num_bytes != shard.num_bytes:
        kind = "truncated" if num_bytes < shard.num_bytes else "another file"
        raise InputError(
            f"{path}: expected {shard.num_bytes} bytes by the manifest, got "
            f"{num_bytes}: the shard is {kind}; {again}"
        )
    digest = _digest(path)
    if digest != shard.digest:
        raise InputError(
            f"{path}: expected digest {shard.digest} by the manifest, got "
            f"{digest}: the shard is another file, or damaged; {again}"
        )


def _digest(path: Path) -> str:
    """Hashes the ends of a shard, which tell shards apart without reading terabytes."""
    with path.open("rb") as shard:
        content = shard.read(_BLOCK_BYTES)
        shard.seek(max(0, path.stat().st_size - _BLOCK_BYTES))
        return hashlib.sha256(content + shard.read()).hexdigest()[:16]
