"""Problem of a file or a caption, for the report."""

import dataclasses


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
