"""Media files of a folder and their captions, in the same order on every machine."""

import dataclasses
import hashlib
import json

from jaxload.media.problem import Problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class MediaFile:
    """A file that may be an image or a video; only decoding can tell."""

    name: str
    """Path relative to the folder, with "/", spelled exactly as on disk."""

    num_bytes: int
    caption: str | None
    """None if the file has no caption."""

    mtime_ns: int | None = None
    """Time stamp of the last change of the file, in nanoseconds; None if not known."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """Contents of a media folder."""

    files: tuple[MediaFile, ...]
    """Files sorted by the code points of their names, the same on every machine."""

    problems: tuple[Problem, ...]
    """Problems found while listing, sorted."""

    @property
    def num_found(self) -> int:
        """Number of files in the folder that may be media, usable or not."""
        bad = {problem.name for problem in self.problems if problem.bad}
        return len(bad.union(file.name for file in self.files))

    def digest(self) -> str:
        """Returns 16 characters that identify the names, sizes and captions.

        Time stamps do not count, because copies of a folder have others.
        """
        digest = hashlib.sha256()
        for file in self.files:
            line = json.dumps([file.name, file.num_bytes, file.caption])
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()[:16]
