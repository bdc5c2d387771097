"""Reviews a preparation: reports its problems, and refuses too many of them."""

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
    """Limits on bad and removed files, and the report of the bad ones."""

    max_bad_share: float
    """Largest share of the files that may be bad, from 0 to 1."""

    max_removed_share: float = 0.5
    """Largest share of a dataset's files that an update may remove, from 0 to 1."""

    write_report: WriteReport

    def __post_init__(self):
        for name in ("max_bad_share", "max_removed_share"):
            share = getattr(self, name)
            if not 0.0 <= share <= 1.0:  # NaN is neither.
                option = name.replace("_", "-")
                raise InputError(f"--{option} {share}: expected 0.0 to 1.0")

    def check_removed(
        self, media: Path, removed: Sequence[str], num_known: int
    ) -> None:
        """Raises InputError if an update would remove too many files of a dataset.

        Probably --media then names another folder, or a part of it is not mounted.
        """
        if len(removed) > self.max_removed_share * num_known:
            raise InputError(
                f"{media}: {len(removed):,} of {num_known:,} files of the dataset are "
                f"not there, such as {shown(removed[0])}; expected at most "
                f"{100 * self.max_removed_share:g}%; check --media, or raise "
                "--max-removed-share to remove their samples"
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
