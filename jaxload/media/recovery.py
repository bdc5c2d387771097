"""Recovers from dead workers: finds the file that kills them, and skips it."""

import dataclasses
from collections import Counter

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.media.captions import shown
from jaxload.media.encode_part import EncodePart
from jaxload.media.part_tables import WORKER_DIED
from jaxload.media.scan_part import ScanPart

Part = ScanPart | EncodePart


class Recovery:
    """Retries parts whose workers died; skips a file that has killed two workers."""

    def __init__(self, console: Console):
        self._console = console
        self._deaths: Counter[tuple[int, str]] = Counter()

    def __call__(self, part: Part, how: str) -> Part:
        """Returns the part to run instead of one whose worker died."""
        name = part.marker.read_bytes().decode() if part.marker.exists() else ""
        self._deaths[part.index, name] += 1
        self._console.say(f"a worker died ({how}) at {shown(name) or 'its start'}")
        if self._deaths[part.index, name] < 2:
            return _careful(part)
        if not name or name in part.poison:
            raise InputError(
                f"worker processes die while they read no file ({how}); run with "
                "--workers 0 to see the error; finished parts are kept"
            )
        return dataclasses.replace(part, poison={**part.poison, name: WORKER_DIED})


def _careful(part: Part) -> Part:
    """Returns the part with options that make a second death name the file to blame."""
    match part:
        case EncodePart():
            return dataclasses.replace(part, one_by_one=True)
        case ScanPart():
            return part
