"""Media files of a folder and their captions, in the same order on every machine."""

import dataclasses
import hashlib
import json

from jaxload.media.captions import shown
from jaxload.media.problem import Problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class MediaFile:
    """A file that may be an image or a video; only decoding can tell."""

    name: str
    """Path relative to the folder, with "/", spelled exactly as on disk."""

    num_bytes: int
    caption: str | None
    """None if the file has no caption."""


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
        """Returns 16 characters that identify the names, sizes and captions."""
        digest = hashlib.sha256()
        for file in self.files:
            line = json.dumps([file.name, file.num_bytes, file.caption])
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()[:16]


def difference(before: Listing, after: Listing) -> str:
    """Describes the first difference between two listings."""
    then = {file.name: file for file in before.files}
    now = {file.name: file for file in after.files}
    for name in sorted(then.keys() | now.keys()):
        if name not in then:
            return f"{shown(name)} is new"
        if name not in now:
            return f"{shown(name)} is gone"
        if then[name].num_bytes != now[name].num_bytes:
            sizes = f"{then[name].num_bytes} bytes, and has {now[name].num_bytes}"
            return f"{shown(name)} had {sizes}"
        if then[name].caption != now[name].caption:
            return f"{shown(name)} has another caption"
    return "nothing"
