"""Reads and writes the tables in `parts/`: scans and encoded samples of each part."""

import dataclasses
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.data.shard import Shard, check_shard
from jaxload.errors import InputError
from jaxload.files import replaced
from jaxload.media.cutting import FrameCount, LeftOutClip
from jaxload.media.frames import Scan
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.problem import Problem
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape

FAILED = "failed"
"""Reason of a problem whose cause is an exception of a codec or a text encoder."""

DIED = "its worker died twice"

_KEY = b"part"
_LISTING = "files.parquet"
_SCAN_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("num_frames", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("fps", pa.float64()),
        ("seconds", pa.float64()),
        ("damage", pa.string()),
    ]
)


def parts_directory(out: Path) -> Path:
    """Returns the directory of the tables."""
    return out / "parts"


def shard_path(out: Path, index: int) -> Path:
    """Returns the path of the shard with a part's records."""
    return out / f"shard-{index:05d}.array_record"


def marker_path(out: Path, prefix: str, index: int) -> Path:
    """Returns the path of the file in which a worker records its current file."""
    # One path per machine, because another machine may run the same part.
    host = socket.gethostname()
    return parts_directory(out) / f"{prefix}-{index:05d}.{host}.current"


def _table_path(out: Path, prefix: str, index: int) -> Path:
    return parts_directory(out) / f"{prefix}-{index:05d}.parquet"


def write_listing(out: Path, listing: Listing) -> None:
    """Writes the files of the listing to a table, unless the table exists."""
    if (out / _LISTING).exists():
        return
    columns = {
        field.name: [getattr(file, field.name) for file in listing.files]
        for field in dataclasses.fields(MediaFile)
    }
    _write(out / _LISTING, pa.table(columns), {})


def read_listing(out: Path) -> Listing:
    """Reads the table of `write_listing`; it has the files, but not the problems."""
    rows = pq.read_table(out / _LISTING).to_pylist()
    return Listing(files=tuple(MediaFile(**row) for row in rows), problems=())


def write_scans(
    out: Path, index: int, scans: Mapping[str, Scan], problems: Iterable[Problem]
) -> None:
    """Writes the scans of a part, as a table that the planner can read."""
    found = scans.values()
    columns = {
        "id": list(scans),
        "num_frames": [s.num_frames for s in found],
        "height": [s.height for s in found],
        "width": [s.width for s in found],
        "fps": [s.fps for s in found],
        "seconds": [s.seconds for s in found],
        "damage": [s.damage for s in found],
    }
    table = pa.table(columns, schema=_SCAN_SCHEMA)
    _write(
        _table_path(out, "scan", index), table, {"problems": _dictionaries(problems)}
    )


def read_scans(out: Path, index: int) -> tuple[dict[str, Scan], list[Problem]]:
    """Reads the scans of a part, by file name, and the problems found by the scan."""
    table = read_scan_table(out, index)
    scans = {
        row["id"]: Scan(
            num_frames=row["num_frames"],
            height=row["height"],
            width=row["width"],
            seconds=row["seconds"],
            damage=row["damage"],
        )
        for row in table.to_pylist()
    }
    return scans, [Problem(**problem) for problem in _metadata(table)["problems"]]


def read_scan_table(out: Path, index: int) -> pa.Table:
    """Reads the scans of a part as a table, for the planner."""
    return pq.read_table(_table_path(out, "scan", index))


def is_scanned(out: Path, index: int) -> bool:
    """Returns whether a part is scanned."""
    return _table_path(out, "scan", index).exists()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedPart:
    """Result of encoding a part."""

    entries: pa.Table
    """Rows of the manifest."""

    shard: Shard | None
    """Shard of the part; None if the part has no clip."""

    problems: Sequence[Problem]
    left_out: Sequence[LeftOutClip]
    frames: FrameCount


def write_encoded(out: Path, index: int, part: EncodedPart) -> None:
    """Writes the result of encoding a part; call it after the shard is written."""
    metadata = {
        "shard": part.shard and dataclasses.asdict(part.shard),
        "problems": _dictionaries(part.problems),
        "left_out": _dictionaries(part.left_out),
        "frames": dataclasses.asdict(part.frames),
    }
    _write(_table_path(out, "part", index), part.entries, metadata)


def read_encoded(out: Path, index: int) -> EncodedPart:
    """Reads the result of encoding a part."""
    table = pq.read_table(_table_path(out, "part", index))
    metadata = _metadata(table)
    return EncodedPart(
        entries=table.replace_schema_metadata(None),
        shard=Shard(**metadata["shard"]) if metadata["shard"] else None,
        problems=[Problem(**problem) for problem in metadata["problems"]],
        left_out=[LeftOutClip(**clip) for clip in metadata["left_out"]],
        frames=FrameCount(**metadata["frames"]),
    )


def is_encoded(out: Path, index: int) -> bool:
    """Returns whether a part is encoded and its shard exists and is intact."""
    if not _table_path(out, "part", index).exists():
        return False
    part = read_encoded(out, index)
    try:
        if part.shard is not None:
            check_shard(out, part.shard)
    except InputError:
        return False
    return True


def has_failed(out: Path, index: int) -> bool:
    """Returns whether a part has failures that a retry may fix."""
    reasons = {problem.reason for problem in read_encoded(out, index).problems}
    return not reasons.isdisjoint({FAILED, DIED})


def shape_counts(table: pa.Table, geometry: Geometry) -> dict[Shape, int]:
    """Counts the samples of each shape in a table of entries."""
    grouped = table.group_by(["frames", "height", "width"]).aggregate(
        [([], "count_all")]
    )
    return {
        Shape(row["frames"], row["height"], row["width"], geometry): row["count_all"]
        for row in grouped.to_pylist()
    }


def _dictionaries(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(value) for value in values]


def _metadata(table: pa.Table) -> dict[str, Any]:
    return json.loads((table.schema.metadata or {})[_KEY])


def _write(path: Path, table: pa.Table, metadata: Mapping[str, Any]) -> None:
    table = table.replace_schema_metadata({_KEY: json.dumps(metadata).encode()})
    with replaced(path) as partial:
        pq.write_table(table, partial)
