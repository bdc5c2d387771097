"""Reviews the problems of a preparation: reports them, then refuses too many."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxload.errors import InputError
from jaxload.media.captions import shown
from jaxload.media.cutting import LeftOutClip
from jaxload.media.history import Change
from jaxload.media.listing import Listing
from jaxload.media.problem import Problem


@runtime_checkable
class WriteReport(Protocol):
    """Function that writes a report of problems and clips, and returns its path."""

    def __call__(
        self,
        problems: Sequence[Problem],
        left_out: Sequence[LeftOutClip],
        changes: Mapping[str, Change],
    ) -> Path: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Review:
    """Limit on bad files, and the report that is written before the limit applies."""

    max_bad_share: float
    """Largest share of the files that may be bad, from 0 to 1."""

    write_report: WriteReport

    def __post_init__(self):
        if not 0.0 <= self.max_bad_share <= 1.0:  # NaN is neither.
            raise InputError(
                f"--max-bad-share {self.max_bad_share}: expected 0.0 to 1.0"
            )

    def check(
        self,
        listing: Listing,
        problems: Sequence[Problem],
        left_out: Sequence[LeftOutClip] = (),
        changes: Mapping[str, Change] | None = None,
    ) -> None:
        """Writes the report, and raises InputError if too many files are bad."""
        report = self.write_report(problems, left_out, changes or {})
        bad = {problem.name: problem for problem in problems if problem.bad}
        if len(bad) > self.max_bad_share * listing.num_found:
            reasons = Counter(problem.reason for problem in bad.values())
            frequent = reasons.most_common(1)[0][0]
            example = next(p for p in bad.values() if p.reason == frequent)
            raise InputError(
                f"{len(bad):,} of {listing.num_found:,} files are bad "
                f"({counts(reasons)}), such as {_described(example)}; expected at most "
                f"{100 * self.max_bad_share:g}%; fix the files that {report} lists, or "
                "raise --max-bad-share"
            )


def _described(problem: Problem) -> str:
    detail = f" ({shown(problem.detail)})" if problem.detail else ""
    return f"{shown(problem.name)}: {problem.reason}{detail}"


def counts(reasons: Iterable[str] | Counter[str]) -> str:
    """Lists reasons with their numbers, the most frequent first."""
    return ", ".join(
        f"{reason}: {count:,}" for reason, count in Counter(reasons).most_common()
    )
