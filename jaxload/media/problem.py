"""What is wrong with a file or a caption, in words that a report can group."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """One thing that a user may want to mend."""

    name: str
    """The file, below the folder of media."""

    reason: str
    """A few words, the same for every file with this problem."""

    detail: str = ""
    """What is particular to this file."""

    bad: bool = True
    """Whether the file is lost by it; otherwise it is used all the same."""
