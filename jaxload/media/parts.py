"""Splits the files of a preparation into parts, the units of work.

A part is a range of consecutive files of the listing, the same on every machine. Each
part is scanned, and then encoded into its own shard. Both stages end by writing a table
in `parts/` atomically. Any worker can therefore run any part at any time, and repeat it
after a crash with identical bytes as result.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxload.media.clip_frames import CHANGED
from jaxload.media.content import content_digest
from jaxload.media.frames import MediaError
from jaxload.media.listing import MediaFile
from jaxload.media.problem import Problem

MIN_PARTS = 64
"""Parts of a small first listing: enough to keep several workers busy."""

MIN_PARTS_OF_UPDATE = 8
"""Parts of a small update: fewer, because every update adds its shards."""

# Upper bounds on a part. Smaller parts lose less work when a worker dies. But training
# keeps all shards open and checks them at startup, so millions of files must give only
# thousands of shards.
_MAX_FILES = 4_096
_MAX_BYTES = 1 << 30


def cut_into_parts(
    files: Sequence[MediaFile], min_parts: int
) -> list[tuple[MediaFile, ...]]:
    """Splits files into parts of consecutive files, the same for the same files.

    There are at least `min_parts` parts, or one for each of fewer files.
    """
    most = max(1, min(_MAX_FILES, len(files) // min_parts))
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
        marker.write_bytes(file.name.encode())  # A text file would change "\r".
        yield file
    marker.unlink(missing_ok=True)


def unchanged(media: Path, file: MediaFile, digest: str | None = None) -> Path:
    """Returns the path of a file, after checking that it is still the listed one.

    The size is compared, and if the time stamp is another, the content with `digest`,
    unless that is None.
    """
    path = media / file.name
    status = path.stat()
    if status.st_size != file.num_bytes:
        sizes = f"expected {file.num_bytes} bytes as listed, got {status.st_size}"
        raise MediaError(CHANGED, sizes)
    is_doubtful = digest is not None and status.st_mtime_ns != file.mtime_ns
    if is_doubtful and content_digest(path) != digest:
        raise MediaError(CHANGED, "its content is not that of the scan")
    return path


def file_problem(file: MediaFile, error: MediaError | OSError) -> Problem:
    """Returns the problem of a file that cannot be decoded."""
    if isinstance(error, OSError):
        error = MediaError("cannot be read", error.strerror or str(error))
    return Problem(name=file.name, reason=error.reason, detail=error.detail)
