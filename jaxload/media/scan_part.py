"""First stage of a part: decodes its files to measure their frames."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from jaxload.media.content import content_digest
from jaxload.media.encode_step import EncodeStep
from jaxload.media.frames import MediaError, Scan, scan
from jaxload.media.listing import MediaFile
from jaxload.media.part_tables import marker_path, write_scans
from jaxload.media.parts import file_problem, marked, unchanged
from jaxload.media.preparation import Preparation
from jaxload.media.problem import Problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanPart:
    """Task that decodes the files of a part and records frames, sizes and damage."""

    preparation: Preparation
    index: int
    files: tuple[MediaFile, ...]
    poison: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Files to skip because they kill their process: the reason, by name."""

    @property
    def marker(self) -> Path:
        """Path of the file in which a worker records the name of its current file."""
        return marker_path(self.preparation.out, "scan", self.index)

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        """Scans all files; returns an empty iterable, as it waits for no result."""
        self.marker.unlink(missing_ok=True)  # Left by a killed worker.
        scans: dict[str, Scan] = {}
        problems: list[Problem] = []
        digests: dict[str, str] = {}
        for file in marked(self.files, self.marker):
            found = self._scan(file, digests)
            if isinstance(found, Scan):
                scans[file.name] = found
                problems += _noted(file, found)
            else:
                problems.append(found)
            on_file()
        write_scans(self.preparation.out, self.index, scans, problems, digests)
        return ()

    def _scan(self, file: MediaFile, digests: dict[str, str]) -> Scan | Problem:
        try:
            path = unchanged(self.preparation.media, file)
            # Before the scan: if the file is replaced in between, the next update finds
            # another digest and encodes the file again.
            digests[file.name] = content_digest(path)
            if reason := self.poison.get(file.name):
                return Problem(name=file.name, reason=reason)
            return scan(path, max_pixels=self.preparation.max_source_pixels)
        except (MediaError, OSError) as error:
            return file_problem(file, error)


def _noted(file: MediaFile, found: Scan) -> list[Problem]:
    notes = list(found.notes)
    if found.damage:
        notes.append(("damaged, used up to the damage", found.damage))
    return [
        Problem(name=file.name, reason=reason, detail=detail, bad=False)
        for reason, detail in notes
    ]
