"""Problem of a file or a caption, for the report."""

import dataclasses
from collections.abc import Iterable

NO_CAPTION = "no caption"
EMPTY_CAPTION = "empty caption"
CUT_CAPTION = "caption cut at the text encoder's limit"
_OF_CAPTIONS = frozenset({NO_CAPTION, EMPTY_CAPTION, CUT_CAPTION})


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """One problem of a file that the user may want to fix."""

    name: str
    """Path of the file, relative to the media folder."""

    reason: str
    """Short description, equal for all files with this problem: reports group by it."""

    detail: str = ""
    """Details that differ from file to file."""

    bad: bool = True
    """True if the problem makes the file unusable, False if the file is used anyway."""


def without_moot(problems: Iterable[Problem]) -> list[Problem]:
    """Drops notes about the captions of files that are unusable anyway."""
    problems = list(problems)
    bad = {problem.name for problem in problems if problem.bad}
    return [p for p in problems if p.reason not in _OF_CAPTIONS or p.name not in bad]
