"""The media files of a folder and their captions, in one order on every machine."""

import dataclasses
import hashlib
import json

from jaxload.media.captions import shown
from jaxload.media.problem import Problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class MediaFile:
    """A file that may be an image or a clip; whether it is, decoding tells."""

    name: str
    """Path below the folder with "/", exactly as on disk."""

    num_bytes: int
    caption: str | None
    """None: it has none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """What a folder holds."""

    files: tuple[MediaFile, ...]
    """Sorted by name, by code points, so that every machine has the same order."""

    problems: tuple[Problem, ...]
    """Sorted."""

    def digest(self) -> str:
        """Names, sizes and captions in 16 characters: equal if and only if they are."""
        digest = hashlib.sha256()
        for file in self.files:
            line = json.dumps([file.name, file.num_bytes, file.caption])
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()[:16]


def difference(before: Listing, after: Listing) -> str:
    """The first thing in which two listings differ, in words."""
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
