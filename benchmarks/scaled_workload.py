"""Scales benchmarks/workloads/mix_dev.csv to any size, as a histogram or as rows."""

import csv
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.shapes.config import ShapeRules

SOURCE = Path(__file__).parent / "workloads" / "mix_dev.csv"
BYTES_PER_ROW = 10
"""Upper bound on the bytes on disk per row of Parquet; 7 were measured."""

_CHUNK_ROWS = 1_000_000
_SIZES = ("num_frames", "height", "width")
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        *((name, pa.int32()) for name in _SIZES),
        ("fps", pa.float64()),
    ]
)


def write_histogram(path: Path, num_samples: int) -> int:
    """Writes a histogram of `num_samples` samples or more; returns their number."""
    with SOURCE.open(newline="") as file:
        header, *rows = csv.reader(file)
    total = sum(int(row[-1]) for row in rows)
    factor = math.ceil(num_samples / total)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([*row[:-1], int(row[-1]) * factor] for row in rows)
    return total * factor


def write_rows(histogram: Path, path: Path) -> int:
    """Writes each sample of a histogram as a row of Parquet; returns the file's bytes.

    Rows are shuffled, because sorted rows would be faster to count.
    """
    *sizes, count = np.loadtxt(
        histogram, np.int64, delimiter=",", skiprows=1, unpack=True
    )
    fps = np.where(sizes[0] > 1, ShapeRules().fps, 0.0)
    entries = np.repeat(np.arange(len(count), dtype=np.int16), count)
    np.random.default_rng(0).shuffle(entries)
    with pq.ParquetWriter(path, _SCHEMA) as writer:
        for first in range(0, len(entries), _CHUNK_ROWS):
            chunk = entries[first : first + _CHUNK_ROWS]
            ids = pa.array(np.arange(first, first + len(chunk))).cast(pa.string())
            columns = [pa.array(size[chunk], pa.int32()) for size in sizes]
            columns.append(pa.array(fps[chunk]))
            writer.write_table(pa.table([ids, *columns], schema=_SCHEMA))
    return path.stat().st_size
