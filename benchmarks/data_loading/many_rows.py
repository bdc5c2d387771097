"""Writes a dataset of millions of rows, whose shards are links to one small shard."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.data_loading.samples import WRITER_OPTIONS, draw_record
from jaxload.data.manifest import (
    write_manifest,
)
from jaxload.data.manifest_metadata import ENTRY_SCHEMA
from jaxload.data.record import encode_record
from jaxload.data.shard import Shard, describe_shard
from jaxload.shapes.shape import Shape

# pyarrow creates this function at import, so type checkers do not know it.
_join = pc.binary_join_element_wise  # pyright: ignore[reportAttributeAccessIssue]

ROWS_PER_SHARD = 10_000
TEXT_WIDTH = 8
MAX_TEXT_TOKENS = 8
SHAPES = tuple(
    Shape(frames, height, width)
    for frames in (1, 2, 3, 5, 9)
    for height, width in ((2, 2), (2, 4), (4, 2), (4, 4), (2, 6), (6, 2))
)
_WORDS = (
    *("a", "the", "red", "slow", "bright", "camera", "person", "street", "river"),
    *("walks", "turns", "across", "towards", "under", "morning", "light", "while"),
    *("people", "watch", "from", "distance", "and", "mountains", "rise", "behind"),
)
_NUM_WORDS = 18  # About a hundred characters.


def write_many(directory: Path, num_rows: int, advance: Callable[[int], None]) -> None:
    """Writes a dataset whose rows are all readable; `advance` counts rows."""
    assert num_rows % ROWS_PER_SHARD == 0
    directory.mkdir()
    rng = np.random.default_rng(0)
    path = directory / _name(0)
    writer = ArrayRecordWriter(str(path), WRITER_OPTIONS)
    indices = rng.integers(len(SHAPES), size=ROWS_PER_SHARD)
    tokens = []
    for index in indices.tolist():
        record = draw_record(rng, SHAPES[index], TEXT_WIDTH, MAX_TEXT_TOKENS)
        writer.write(encode_record(record))
        tokens.append(len(record.text))
    writer.close()
    first = describe_shard(path, ROWS_PER_SHARD)
    shards = [_link(directory, first, i) for i in range(num_rows // ROWS_PER_SHARD)]
    sizes = np.array([(s.frames, s.height, s.width) for s in SHAPES])[indices]

    def tables() -> Iterator[pa.Table]:
        for i in range(len(shards)):
            yield _table(rng, i * ROWS_PER_SHARD, tokens, sizes)
            advance(ROWS_PER_SHARD)

    write_manifest(directory, tables(), shards, {})


def _name(index: int) -> str:
    return f"shard-{index:05d}.array_record"


def _link(directory: Path, first: Shard, index: int) -> Shard:
    if index:
        os.link(directory / first.name, directory / _name(index))
    return describe_shard(directory / _name(index), first.num_records)


def _table(
    rng: np.random.Generator, start: int, tokens: list[int], sizes: np.ndarray
) -> pa.Table:
    count = len(tokens)
    number = pc.cast(pa.array(np.arange(start, start + count)), pa.string())
    words = pa.array(_WORDS)
    drawn = [
        words.take(pa.array(rng.integers(len(_WORDS), size=count)))
        for _ in range(_NUM_WORDS)
    ]
    columns = [
        _join("clip", number, "-"),
        _join("videos/", number, ".mp4", ""),
        np.zeros(count, np.int64),
        _join(*drawn, " "),
        tokens,
        *sizes.T,
    ]
    return pa.table(dict(zip(ENTRY_SCHEMA.names, columns, strict=True))).cast(
        ENTRY_SCHEMA
    )
