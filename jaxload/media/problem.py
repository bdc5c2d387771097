"""Problems of files and captions, worded so that a report can group them."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """One problem that a user may want to fix."""

    name: str
    """Path of the file, relative to the media folder."""

    reason: str
    """Short description, the same for every file with this problem."""

    detail: str = ""
    """Details that are particular to this file."""

    bad: bool = True
    """True if the problem makes the file unusable, False if the file is used anyway."""
