"""Splits the files of a preparation into parts, the units of work.

A part is a range of consecutive files of the listing, the same on every machine. Each
part is scanned, and then encoded into its own shard. Both stages end by writing a table
in `parts/` atomically. Any worker can therefore run any part at any time, and repeat it
after a crash with identical bytes as result.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxload.media.clip_frames import CHANGED
from jaxload.media.frames import MediaError
from jaxload.media.listing import MediaFile
from jaxload.media.problem import Problem

_MIN_PARTS = 64  # Enough that a small folder keeps several workers busy.

# Upper bounds on a part. Smaller parts lose less work when a worker dies. But training
# keeps all shards open and checks them at startup, so millions of files must give only
# thousands of shards.
_MAX_FILES = 4_096
_MAX_BYTES = 1 << 30


def cut_into_parts(files: Sequence[MediaFile]) -> list[tuple[MediaFile, ...]]:
    """Splits files into parts of consecutive files, the same for the same files."""
    most = max(1, min(_MAX_FILES, len(files) // _MIN_PARTS))
    parts: list[list[MediaFile]] = []
    num_bytes = 0
    for file in files:
        num_bytes += file.num_bytes
        if not parts or len(parts[-1]) == most or num_bytes > _MAX_BYTES:
            parts.append([])
            num_bytes = file.num_bytes
        parts[-1].append(file)
    return [tuple(part) for part in parts]


def marked(files: Sequence[MediaFile], marker: Path) -> Iterator[MediaFile]:
    """Yields the files; a marker file on disk holds the name of the current one."""
    for file in files:
        marker.write_text(file.name)
        yield file
    marker.unlink(missing_ok=True)


def unchanged(media: Path, file: MediaFile) -> Path:
    """Returns the path of a file, after checking that it still has the listed size."""
    path = media / file.name
    num_bytes = path.stat().st_size
    if num_bytes != file.num_bytes:
        sizes = f"expected {file.num_bytes} bytes as listed, got {num_bytes}"
        raise MediaError(CHANGED, sizes)
    return path


def file_problem(file: MediaFile, error: MediaError | OSError) -> Problem:
    """Returns the problem of a file that cannot be decoded."""
    if isinstance(error, OSError):
        error = MediaError("cannot be read", error.strerror or str(error))
    return Problem(name=file.name, reason=error.reason, detail=error.detail)
