"""Reads and writes the tables in `parts/`: scans and encoded samples of each part."""

import dataclasses
import json
import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.data.manifest_metadata import ENTRY_SCHEMA
from jaxload.data.shard import Shard, check_shard
from jaxload.errors import InputError
from jaxload.files import replaced
from jaxload.media.cutting import FrameCount, LeftOutClip
from jaxload.media.frames import Scan
from jaxload.media.problem import Problem
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape

FAILED = "failed"
"""Reason of a problem whose cause is an exception of a codec or a text encoder."""

WORKER_DIED = "its worker died twice"
ENCODER_DIED = "its encoder died twice"

_KEY = b"part"
_CLIP_ID = re.compile(r"(.*)@(\d+)", re.DOTALL)
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


def write_scans(
    out: Path,
    index: int,
    scans: Mapping[str, Scan],
    problems: Iterable[Problem],
    digests: Mapping[str, str],
) -> None:
    """Writes the scans of a part, as a table that the planner can read.

    Args:
        out: Directory of the dataset.
        index: Number of the part.
        scans: Scans of the files that can be decoded, by name.
        problems: Problems found by the scans.
        digests: Digests of the contents that were scanned, by name.
    """
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
    metadata = {"problems": _dictionaries(problems), "digests": dict(digests)}
    _write(_table_path(out, "scan", index), table, metadata)


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


def copy_scans(source: Path, out: Path, index: int) -> None:
    """Copies the scans of a part to another dataset."""
    with replaced(_table_path(out, "scan", index)) as partial:
        shutil.copyfile(_table_path(source, "scan", index), partial)


def read_digests(out: Path, index: int) -> dict[str, str]:
    """Reads the digests of the contents that a part scanned, by file name.

    Files that could not be read are missing, and all files if there is no scan yet.
    """
    if not is_scanned(out, index):
        return {}
    # Earlier versions recorded no digests.
    return _metadata(read_scan_table(out, index)).get("digests", {})


def read_scan_table(out: Path, index: int) -> pa.Table:
    """Reads the scans of a part as a table, for the planner."""
    return _read(_table_path(out, "scan", index))


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
    table = _read(_table_path(out, "part", index))
    metadata = _metadata(table)
    return EncodedPart(
        entries=with_starts(table.replace_schema_metadata(None)),
        shard=Shard(**metadata["shard"]) if metadata["shard"] else None,
        problems=[Problem(**problem) for problem in metadata["problems"]],
        left_out=[_left_out_clip(clip) for clip in metadata["left_out"]],
        frames=_frame_count(metadata["frames"]),
    )


def with_starts(entries: pa.Table) -> pa.Table:
    """Adds the column `start`, which earlier versions left to the id."""
    if "start" in entries.schema.names:
        return entries
    pairs = zip(entries["id"].to_pylist(), entries["source"].to_pylist(), strict=True)
    starts = [int(name.removeprefix(source)[1:] or 0) for name, source in pairs]
    position = ENTRY_SCHEMA.get_field_index("start")
    field = ENTRY_SCHEMA.field(position)
    return entries.add_column(position, field, pa.array(starts, field.type))


def _left_out_clip(fields: Mapping[str, Any]) -> LeftOutClip:
    if "id" not in fields:
        return LeftOutClip(**fields)
    # Earlier versions recorded an id instead of the file and the first frame.
    match = _CLIP_ID.fullmatch(fields["id"])
    source, start = (match[1], int(match[2])) if match else (fields["id"], None)
    return LeftOutClip(
        source=source, start=start, reason=fields["reason"], detail=fields["detail"]
    )


def _frame_count(fields: Mapping[str, int]) -> FrameCount:
    # Earlier versions cut clips to the frames of a shape, too.
    known = {name: n for name, n in fields.items() if name != "beyond_shape"}
    known["uneven"] += fields.get("beyond_shape", 0)
    return FrameCount(**known)


def has_table(out: Path, index: int) -> bool:
    """Returns whether the table of an encoded part exists."""
    return _table_path(out, "part", index).exists()


def is_encoded(out: Path, index: int) -> bool:
    """Returns whether a part is encoded and its shard exists and is intact."""
    if not has_table(out, index):
        return False
    try:
        part = read_encoded(out, index)
        if part.shard is not None:
            check_shard(out, part.shard)
    except InputError:
        return False
    return True


def has_failed(out: Path, index: int) -> bool:
    """Returns whether a part has failures that a retry may fix."""
    reasons = {problem.reason for problem in read_encoded(out, index).problems}
    return not reasons.isdisjoint({FAILED, WORKER_DIED, ENCODER_DIED})


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


def _read(path: Path) -> pa.Table:
    """Reads a table that was written by `_write`, or refuses a damaged one."""
    try:
        table = pq.read_table(path)
        _metadata(table)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: expected a table of a prepared part, got one that cannot be read "
            f"({reason}); restore the file, or remove it and run the command again"
        ) from error
    return table


def _metadata(table: pa.Table) -> dict[str, Any]:
    return json.loads((table.schema.metadata or {})[_KEY])


def _write(path: Path, table: pa.Table, metadata: Mapping[str, Any]) -> None:
    table = table.replace_schema_metadata({_KEY: json.dumps(metadata).encode()})
    with replaced(path) as partial:
        pq.write_table(table, partial)
