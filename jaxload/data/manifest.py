"""Manifest of a dataset: its samples, its generations and its shards."""

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

from jaxload.data.generation import (
    Generation,
    Ranges,
    all_masked,
    extended,
    mask,
)
from jaxload.data.manifest_metadata import (
    ENTRY_SCHEMA,
    FILE_NAME,
    SIZES,
    damaged,
    read_generations,
    schema_with_metadata,
)
from jaxload.data.shard import Shard, check_shard
from jaxload.data.unique_ids import check_unique_ids
from jaxload.errors import InputError
from jaxload.files import replaced
from jaxload.shapes.geometry import DEFAULT, Geometry, Sizes
from jaxload.shapes.shape import Shape

_ROW_GROUP = 1 << 16
_NUM_THREADS = 16  # Threads that check shards, to hide latency of network storage.
_MAX_SIZE = 1 << 20  # Bound on each size, so that three sizes pack into 64 bits.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the manifest: metadata of a sample."""

    id: str
    source: str
    """Path of the sample's media file, relative to the media folder."""

    start: int = 0
    """First frame of the clip, counted at the frame rate of the dataset."""

    caption: str
    text_tokens: int
    """Number of tokens of the text embedding."""

    shape: Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A generation of a dataset.

    Row i describes record i, counted through the shards in order, in every generation.
    Masked rows belong to files that were removed or replaced; nothing uses them.

    Columns are read on demand. A pickled copy reads the columns again in its process,
    because ten million rows are faster to read than to send.
    """

    directory: Path
    shards: tuple[Shard, ...]
    fingerprint: Mapping[str, Any]
    """Provenance of the dataset: codec, text encoder, source."""

    masked: Ranges = ()
    geometry: Geometry = DEFAULT
    """Codec strides and model patches, which relate pixels, latents and tokens."""

    is_newest: bool = True
    """False if the dataset was updated after this generation."""

    def __len__(self) -> int:
        """Returns the number of rows, with masked ones."""
        return self._ends[-1] if self.shards else 0

    def __getstate__(self) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names}

    def digest(self) -> str:
        """Returns 16 characters that identify fingerprint, shards and masked rows."""
        content = [self.fingerprint, [shard.digest for shard in self.shards]]
        # Omitted if empty: runs have recorded digests of datasets without masked rows.
        content += [self.masked] if self.masked else []
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def read_column(self, name: str) -> pa.ChunkedArray:
        """Reads one column of all rows, with masked ones."""
        return self._read([name])[name]

    def _read(self, names: Sequence[str]) -> pa.Table:
        path = self.directory / FILE_NAME
        try:
            table = pq.read_table(path, columns=list(names))
            table.validate(full=True)
            if len(table) < len(self):
                raise pa.ArrowInvalid(f"{len(table)} rows, expected {len(self)}")
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, error) from error
        return table.slice(0, len(self))  # Later generations append rows.

    @functools.cached_property
    def used_rows(self) -> np.ndarray:
        """Rows that are not masked, ascending."""
        return np.flatnonzero(~mask(self.masked, len(self))).astype(np.int32)

    @property
    def may_cut(self) -> bool:
        """True if a clip's first latent frames are the latent of its first frames."""
        return self.fingerprint.get("is_causal") is True

    @functools.cached_property
    def shape_codes(self) -> tuple[tuple[Shape, ...], np.ndarray]:
        """All shapes, ascending, and for each of `used_rows` the index of its shape."""
        table = self._read(SIZES)
        key = np.zeros(table.num_rows, np.int64)
        for name in SIZES:
            sizes = table[name].to_numpy()
            if len(sizes) and not (sizes.min() >= 1 and sizes.max() < _MAX_SIZE):
                path = self.directory / FILE_NAME
                raise damaged(path, ValueError(f"a latent without {name}"))
            key = key * _MAX_SIZE + sizes.astype(np.int64)
        key = key[self.used_rows] if self.masked else key
        encoded = pa.array(key).dictionary_encode()
        keys, codes = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        rank = np.argsort(keys)
        new_code = np.empty(len(keys), np.uint16 if len(keys) <= 1 << 16 else np.int32)
        new_code[rank] = np.arange(len(keys), dtype=new_code.dtype)
        shapes = tuple(self._shape(key) for key in keys[rank].tolist())
        return shapes, new_code[codes]

    @functools.cached_property
    def rows_by_shape(self) -> Mapping[Shape, np.ndarray]:
        """Rows of each shape that are not masked, ascending."""
        shapes, codes = self.shape_codes
        # Small codes sort faster than 64-bit keys, which matters for ten million rows.
        order = np.argsort(codes, kind="stable").astype(np.int32)
        order = self.used_rows[order] if self.masked else order
        ends = np.cumsum(np.bincount(codes, minlength=len(shapes)))
        return dict(zip(shapes, np.split(order, ends[:-1]), strict=True))

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


def entry_table(entries: Sequence[Entry]) -> pa.Table:
    """Converts entries to a table with one row each."""
    columns = {
        "id": [e.id for e in entries],
        "source": [e.source for e in entries],
        "start": [e.start for e in entries],
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
    *,
    earlier: Sequence[Generation] = (),
    masked: Ranges = (),
    num_updates: int = 1,
    patch: Sizes = DEFAULT.patch,
) -> None:
    """Writes the manifest of a directory that already holds the shards.

    Args:
        directory: Directory of the dataset.
        entries: All rows, with those of earlier generations first.
        shards: All shards, likewise.
        fingerprint: Provenance of the newest generation.
        earlier: Generations before this one.
        masked: Rows that the newest generation masks and earlier ones do not.
        num_updates: Updates of the media that the newest generation covers.
        patch: Latent frames, rows and columns per token of the records.

    Raises:
        InputError: Two rows that are not masked have the same id.
    """
    newest = Generation(
        fingerprint=dict(fingerprint),
        num_shards=len(shards),
        masked=masked,
        num_updates=num_updates,
    )
    generations = extended(earlier, newest)
    schema = schema_with_metadata(generations, shards, patch)
    with replaced(directory / FILE_NAME) as partial:
        num_rows = 0
        with pq.ParquetWriter(partial, schema) as writer:
            for table in _grouped(entries):
                writer.write_table(table.cast(schema), row_group_size=_ROW_GROUP)
                num_rows += table.num_rows
        check_unique_ids(partial, mask(all_masked(generations), num_rows))


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


def read_manifest(
    directory: Path, geometry: Geometry = DEFAULT, *, digest: str | None = None
) -> Manifest:
    """Reads a manifest and checks that the shards match it and the model's patch.

    Args:
        directory: Directory of the dataset.
        geometry: Geometry of the codec and the model.
        digest: Digest of the generation to open; if None, or if no generation has this
            digest, opens the newest.
    """
    generations, shards = read_generations(directory, geometry.patch)
    if not generations:
        raise InputError(
            f"dataset {directory}: expected {FILE_NAME} in it, found none; check "
            "data.path, or prepare the dataset with python -m jaxload.prepare"
        )
    manifest = _find_generation(directory, generations, shards, geometry, digest)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        # `map` keeps the order, so the error names the first invalid shard.
        for _ in pool.map(lambda shard: check_shard(directory, shard), manifest.shards):
            pass
    return manifest


def _find_generation(
    directory: Path,
    generations: Sequence[Generation],
    shards: Sequence[Shard],
    geometry: Geometry,
    digest: str | None,
) -> Manifest:
    """Returns the generation with a digest, or else the newest."""
    newest = _make_manifest(directory, generations, shards, geometry)
    if digest is None or newest.digest() == digest:
        return newest
    for i in range(len(generations) - 1, 0, -1):
        older = _make_manifest(directory, generations[:i], shards, geometry)
        if older.digest() == digest:
            return dataclasses.replace(older, is_newest=False)
    return newest


def _make_manifest(
    directory: Path,
    generations: Sequence[Generation],
    shards: Sequence[Shard],
    geometry: Geometry,
) -> Manifest:
    """Returns the last of some generations."""
    return Manifest(
        directory=directory,
        shards=tuple(shards[: generations[-1].num_shards]),
        fingerprint=generations[-1].fingerprint,
        masked=all_masked(generations),
        geometry=geometry,
    )
