"""Scales the mixture in benchmarks/workloads to any size, as a histogram or as rows."""

import csv
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.shapes.clips import ShapeRules

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
    """Writes a histogram of at least `num_samples` samples; returns their number."""
    with SOURCE.open(newline="") as file:
        header, *kinds = csv.reader(file)
    total = sum(int(kind[-1]) for kind in kinds)
    factor = math.ceil(num_samples / total)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([*kind[:-1], int(kind[-1]) * factor] for kind in kinds)
    return total * factor


def write_rows(histogram: Path, path: Path) -> int:
    """Writes each sample of a histogram as a row of Parquet; returns the file's bytes.

    All rows are shuffled, because sorted rows would be easier to count.
    """
    *sizes, count = np.loadtxt(
        histogram, np.int64, delimiter=",", skiprows=1, unpack=True
    )
    fps = np.where(sizes[0] > 1, ShapeRules().fps, 0.0)
    kinds = np.repeat(np.arange(len(count), dtype=np.int16), count)
    np.random.default_rng(0).shuffle(kinds)
    with pq.ParquetWriter(path, _SCHEMA) as writer:
        for first in range(0, len(kinds), _CHUNK_ROWS):
            chunk = kinds[first : first + _CHUNK_ROWS]
            ids = pa.array(np.arange(first, first + len(chunk))).cast(pa.string())
            columns = [pa.array(size[chunk], pa.int32()) for size in sizes]
            columns.append(pa.array(fps[chunk]))
            writer.write_table(pa.table([ids, *columns], schema=_SCHEMA))
    return path.stat().st_size
