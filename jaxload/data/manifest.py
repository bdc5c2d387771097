"""The manifest: what a data set holds, how it was made and what its shards weigh."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.balance.shape import Shape
from jaxload.errors import InputError

FILE_NAME = "manifest.parquet"
_FORMAT = 1
METADATA_KEY = b"jaxload"
_BLOCK_BYTES = 65_536  # ArrayRecord's block size, to which it pads its files.
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("caption", pa.string()),
        ("frames", pa.int32()),
        ("height", pa.int32()),
        ("width", pa.int32()),
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One ArrayRecord file, and what must be true of it."""

    name: str
    num_records: int
    num_bytes: int
    digest: str
    """Of the first block and the last, which says where each record lies."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the manifest: a sample's id, caption and latent shape."""

    id: str
    caption: str
    shape: Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A data set. Row i describes record i, counted through the shards in order."""

    directory: Path
    shards: tuple[Shard, ...]
    fingerprint: Mapping[str, object]
    """What made the data set: codec, text encoder, source. Equal: equal records."""

    table: pa.Table

    def __len__(self) -> int:
        return self.table.num_rows

    def digest(self) -> str:
        """The fingerprint in a few characters."""
        text = json.dumps(self.fingerprint, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def shard_paths(self) -> list[str]:
        """Paths of the shards, in the order of the rows."""
        return [str(self.directory / shard.name) for shard in self.shards]

    def rows_by_shape(self) -> dict[Shape, np.ndarray]:
        """The rows of each shape, ascending."""
        sizes = np.stack(
            [self.table[name].to_numpy() for name in ("frames", "height", "width")],
            axis=1,
        )
        unique, inverse = np.unique(sizes, axis=0, return_inverse=True)
        return {
            Shape(*map(int, size)): np.flatnonzero(inverse == i)
            for i, size in enumerate(unique)
        }

    def locate(self, row: int) -> str:
        """Names the shard and the record of a row, for messages."""
        for shard in self.shards:
            if row < shard.num_records:
                return f"{self.directory / shard.name}, record {row}"
            row -= shard.num_records
        raise IndexError(row)


def write_manifest(
    directory: Path,
    entries: Sequence[Entry],
    shards: Sequence[Shard],
    fingerprint: Mapping[str, object],
) -> None:
    """Writes the manifest of a directory that holds the shards already."""
    columns = {
        "id": [e.id for e in entries],
        "caption": [e.caption for e in entries],
        "frames": [e.shape.frames for e in entries],
        "height": [e.shape.height for e in entries],
        "width": [e.shape.width for e in entries],
    }
    metadata = {
        "format": _FORMAT,
        "fingerprint": dict(fingerprint),
        "shards": [dataclasses.asdict(shard) for shard in shards],
    }
    schema = _SCHEMA.with_metadata({METADATA_KEY: json.dumps(metadata).encode()})
    pq.write_table(pa.table(columns, schema=schema), directory / FILE_NAME)


def read_manifest(directory: Path) -> Manifest:
    """Reads a manifest and checks that the shards are those it was written for."""
    path = directory / FILE_NAME
    if not path.exists():
        raise InputError(
            f"data set {directory}: expected {FILE_NAME} in it, found none; check "
            "data.path, or prepare the data set"
        )
    try:
        table = pq.read_table(path)
        metadata = json.loads((table.schema.metadata or {})[METADATA_KEY])
        if metadata["format"] != _FORMAT:
            raise InputError(
                f"{path}: expected manifest format {_FORMAT}, got "
                f"{metadata['format']}; prepare the data set again with this version"
            )
        manifest = Manifest(
            directory=directory,
            shards=tuple(Shard(**shard) for shard in metadata["shards"]),
            fingerprint=metadata["fingerprint"],
            table=table.select(_SCHEMA.names),
        )
    except (pa.ArrowException, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path}: not a manifest of jaxload ({error!r}); prepare the data set again"
        ) from error
    _check_shards(manifest)
    return manifest


def shard_digest(path: Path) -> str:
    """Digest of a shard's ends: tells two shards apart without reading terabytes."""
    with path.open("rb") as shard:
        content = shard.read(_BLOCK_BYTES)
        shard.seek(max(0, path.stat().st_size - _BLOCK_BYTES))
        return hashlib.sha256(content + shard.read()).hexdigest()[:16]


def _check_shards(manifest: Manifest) -> None:
    again = "copy the shard again or prepare the data set again"
    for shard in manifest.shards:
        path = manifest.directory / shard.name
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
        digest = shard_digest(path)
        if digest != shard.digest:
            raise InputError(
                f"{path}: expected digest {shard.digest} by the manifest, got "
                f"{digest}: the shard is another file, or damaged; {again}"
            )
    num_records = sum(shard.num_records for shard in manifest.shards)
    if num_records != len(manifest):
        raise InputError(
            f"{manifest.directory / FILE_NAME}: {len(manifest)} rows for "
            f"{num_records} records in its shards; prepare the data set again"
        )
