"""Second stage of a part: decodes its clips, encodes them and writes a shard."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from jaxload.media.clip_frames import read_clips
from jaxload.media.cutting import cut_file
from jaxload.media.encode_step import MAX_UNWRITTEN, EncodeStep, LocalStep
from jaxload.media.file_progress import FileProgress
from jaxload.media.frames import MediaError, Scan
from jaxload.media.listing import MediaFile
from jaxload.media.part_tables import (
    ENCODER_DIED,
    marker_path,
    read_digests,
    read_scans,
)
from jaxload.media.part_writer import FileInWork, PartWriter, PoisonFileError
from jaxload.media.parts import file_problem, marked, unchanged
from jaxload.media.preparation import Preparation
from jaxload.media.problem import Problem
from jaxload.shapes.size_cover import Size

_MAX_WAITING = MAX_UNWRITTEN // 2  # The other half is for earlier parts.


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodePart:
    """Task that encodes the clips of a part and writes them to a shard."""

    preparation: Preparation
    index: int
    files: tuple[MediaFile, ...]
    sizes: tuple[Size, ...]
    poison: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Files to skip because they kill their process: the reason, by name."""

    one_by_one: bool = False
    """True to wait for the result of each clip before the next clip is decoded. If a
    worker that encodes clips itself dies, the marker then names the file that killed
    it. Has no effect if encoder processes encode the clips."""

    @property
    def marker(self) -> Path:
        """Path of the file in which a worker records the name of its current file."""
        return marker_path(self.preparation.out, "part", self.index)

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        """Returns an iterator that encodes the part.

        The iterator decodes all files before its first yield. It then yields as long as
        the part waits for results of `step`. If a file turns out to kill encoders, the
        iterator starts the part again without that file.
        """
        assert step is not None
        part, progress = self, FileProgress(on_file)
        while True:
            try:
                yield from part._run(progress, step)
            except PoisonFileError as error:
                poison = {**part.poison, error.name: ENCODER_DIED}
                part = dataclasses.replace(part, poison=poison)
                progress.restart()
            else:
                return

    def _run(self, on_file: Callable[[], None], step: EncodeStep) -> Iterator[None]:
        self.marker.unlink(missing_ok=True)  # Left by a killed worker.
        step.open()
        scans, _ = read_scans(self.preparation.out, self.index)
        digests = read_digests(self.preparation.out, self.index)
        with PartWriter(self.preparation.out, self.index, step, on_file) as writer:
            for file in marked(self.files, self.marker):
                found, digest = scans.get(file.name), digests.get(file.name)
                self._decode(file, found, digest, step, writer)
                _wait_while_full(step, writer)
            while writer.num_waiting:
                yield
                writer.write_ready()
            writer.finish()

    def _decode(
        self,
        file: MediaFile,
        found: Scan | None,
        digest: str | None,
        step: EncodeStep,
        writer: PartWriter,
    ) -> None:
        """Submits the clips of a file for encoding, or records why it has none.

        `found` is the file's scan, or None if the scan failed; `digest` identifies the
        scanned content.
        """
        if found is None:  # The scan has already recorded the problem.
            writer.skip()
        elif reason := self.poison.get(file.name):
            writer.skip(Problem(name=file.name, reason=reason))
        else:
            rules, geometry = self.preparation.rules, self.preparation.geometry
            cutting = cut_file(file.name, found, self.sizes, rules, geometry)
            work = FileInWork(file=file, cutting=cutting)
            problem = None
            try:
                path = unchanged(self.preparation.media, file, digest)
                self._submit(work, path, step, writer)
            except (MediaError, OSError) as error:
                step.release()
                problem = file_problem(file, error)
            writer.end(work, problem)

    def _submit(
        self, work: FileInWork, path: Path, step: EncodeStep, writer: PartWriter
    ) -> None:
        file = work.file
        if not work.cutting.clips:
            return
        one_by_one = self.one_by_one and isinstance(step, LocalStep)
        work.text = step.submit_caption(file.name, work.caption)
        most = self.preparation.max_source_pixels
        for clip, video in read_clips(path, work.cutting, step.buffer, max_pixels=most):
            writer.add(work, clip, step.submit_clip(file.name, clip.shape, video))
            _wait_while_full(step, writer, 1 if one_by_one else _MAX_WAITING)
            if work.problem is not None:  # No later clip would be written.
                return


def _wait_while_full(
    step: EncodeStep, writer: PartWriter, limit: int = _MAX_WAITING
) -> None:
    """Writes all results, and waits for more while `limit` clips or ends wait."""
    writer.write_ready()
    while writer.num_waiting >= limit:
        step.wait()
        writer.write_ready()
