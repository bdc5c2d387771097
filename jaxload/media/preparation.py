"""Preparation of a dataset, and the parts that its work is split into.

A part is a range of consecutive files of the listing, the same on every machine. Each
part is scanned, and then encoded into its own shard; both stages end by writing a table
in `parts/` atomically. So any worker can do any part at any time, and repeat it after a
crash with the same bytes as result.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from array_record.python.array_record_module import ArrayRecordWriter

from jaxload.codecs.codec import Codec, load_codec
from jaxload.codecs.text import TextEncoder, load_text_encoder
from jaxload.data.manifest import Entry, describe_shard, entry_table
from jaxload.errors import InputError
from jaxload.files import replaced
from jaxload.media.cutting import FrameCount, LeftOutClip, cut_file
from jaxload.media.encoding import CHANGED, encode_file
from jaxload.media.frames import MediaError, Scan, scan
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.part_tables import (
    DIED,
    FAILED,
    EncodedPart,
    marker_path,
    read_scans,
    shard_path,
    write_encoded,
    write_scans,
)
from jaxload.media.problem import Problem
from jaxload.shapes.clips import ShapeRules
from jaxload.shapes.shape import Shape

_VERSION = 1
"""Version of the records; raised when the same media would give other records."""

_MIN_PARTS = 64  # Enough that a small folder keeps several workers busy.

# Limits of a part, which is the most work that a worker loses in a crash. Large enough
# that millions of files make only thousands of shards, because a process keeps all
# shards open and checks them at startup.
_MAX_FILES = 4_096
_MAX_BYTES = 1 << 30

# One record per group, so that a reader reads only the requested record. Compression
# would save little, as latents hardly compress, and slow down every read.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """Inputs, output directory and options of the preparation of one dataset."""

    media: Path
    out: Path
    codec: str
    text_encoder: str
    text_dim: int
    rules: ShapeRules
    max_shapes: int
    """Most shapes to choose; ignored if `shapes` is given."""

    shapes: tuple[Shape, ...] | None = None
    """Shapes of a plan; None to choose them from the scanned files."""

    origin: str = "a folder of media"
    """Source of the media, recorded in the dataset's fingerprint."""

    def load(self) -> tuple[Codec, TextEncoder]:
        """Returns the codec and the text encoder, each made once per process."""
        encoder = load_text_encoder(self.text_encoder, self.text_dim)
        return load_codec(self.codec), encoder

    def fingerprint(self, listing: Listing) -> dict[str, Any]:
        """Returns everything that the records depend on, readable in error messages."""
        codec, encoder = self.load()
        shapes = f"chosen, at most {self.max_shapes}"
        if self.shapes is not None:
            shapes = ", ".join(map(str, self.shapes))
        return {
            "version": _VERSION,
            "origin": self.origin,
            "codec": self.codec,
            "codec_name": codec.name,
            "channels": codec.channels,
            "text_encoder": self.text_encoder,
            "text_encoder_name": encoder.name,
            "text_dim": encoder.dim,
            "shapes": shapes,
            "rules": dataclasses.asdict(self.rules),
            "media": f"{len(listing.files)} files, {listing.digest()}",
            **{f"library {name}": version(name) for name in ("av", "pillow")},
        }


def cut_into_parts(files: Sequence[MediaFile]) -> list[tuple[MediaFile, ...]]:
    """Splits files into parts of consecutive files, the same for the same files."""
    most = max(1, min(_MAX_FILES, len(files) // _MIN_PARTS))
    parts: list[list[MediaFile]] = []
    num_bytes = 0
    for file in files:
        num_bytes += file.num_bytes
        if not parts or len(parts[-1]) == most or num_bytes > _MAX_BYTES:
            parts.append([])
            num_bytes = file.num_bytes
        parts[-1].append(file)
    return [tuple(part) for part in parts]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanPart:
    """Decodes the files of a part and records their frames, sizes and damage."""

    preparation: Preparation
    index: int
    files: tuple[MediaFile, ...]
    deadly: frozenset[str] = frozenset()
    """Names of files to skip, because workers died on them."""

    @property
    def marker(self) -> Path:
        """Path at which a worker records the file it is working on."""
        return marker_path(self.preparation.out, "scan", self.index)

    def __call__(self, on_file: Callable[[], None]) -> None:
        self.marker.unlink(missing_ok=True)  # Left by a killed worker.
        scans: dict[str, Scan] = {}
        problems: list[Problem] = []
        for file in _marked(self, on_file):
            if file.name in self.deadly:
                problems.append(Problem(name=file.name, reason=DIED))
                continue
            try:
                found = scan(_unchanged(self.preparation.media, file))
            except (MediaError, OSError) as error:
                problems.append(_problem(file, error))
                continue
            scans[file.name] = found
            if found.damage:
                problems.append(
                    Problem(
                        name=file.name,
                        reason="damaged, used up to there",
                        detail=found.damage,
                        bad=False,
                    )
                )
        write_scans(self.preparation.out, self.index, scans, problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodePart:
    """Encodes the clips of a part into a shard."""

    preparation: Preparation
    index: int
    files: tuple[MediaFile, ...]
    shapes: tuple[Shape, ...]
    deadly: frozenset[str] = frozenset()

    @property
    def marker(self) -> Path:
        """Path at which a worker records the file it is working on."""
        return marker_path(self.preparation.out, "part", self.index)

    def __call__(self, on_file: Callable[[], None]) -> None:
        self.marker.unlink(missing_ok=True)  # Left by a killed worker.
        out = self.preparation.out
        path = shard_path(out, self.index)
        progress, codec, encoder = _Progress(), *self.preparation.load()
        with replaced(path) as partial:
            samples = self._encode(on_file, progress, codec, encoder)
            _write_shard(partial, samples, progress.entries)
        shard = None
        if progress.entries:
            shard = describe_shard(path, len(progress.entries))
        else:
            path.unlink(missing_ok=True)
        write_encoded(
            out,
            self.index,
            EncodedPart(
                entries=entry_table(progress.entries),
                shard=shard,
                problems=progress.problems,
                left_out=progress.left_out,
                frames=progress.frames,
            ),
        )

    def _encode(
        self,
        on_file: Callable[[], None],
        progress: "_Progress",
        codec: Codec,
        encoder: TextEncoder,
    ) -> Iterator[tuple[Entry, bytes]]:
        preparation = self.preparation
        scans, _ = read_scans(preparation.out, self.index)
        for file in _marked(self, on_file):
            found = scans.get(file.name)
            if found is None:  # The scan recorded a problem.
                continue
            if file.name in self.deadly:
                progress.problems.append(Problem(name=file.name, reason=DIED))
                continue
            cutting = cut_file(file.name, found, self.shapes, preparation.rules)
            progress.left_out += cutting.left_out
            before = len(progress.entries)
            try:
                yield from encode_file(
                    _unchanged(preparation.media, file),
                    file.name,
                    file.caption or "",
                    cutting,
                    codec=codec,
                    text_encoder=encoder,
                )
            except (MediaError, OSError) as error:
                progress.fail(_problem(file, error), before, cutting.frames)
            except Exception as error:  # Codecs and encoders may raise anything.
                detail = f"{type(error).__name__}: {error}"
                problem = Problem(name=file.name, reason=FAILED, detail=detail)
                progress.fail(problem, before, cutting.frames)
            else:
                progress.frames += cutting.frames


@dataclasses.dataclass
class _Progress:
    """Results of encoding a part so far."""

    entries: list[Entry] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    left_out: list[LeftOutClip] = dataclasses.field(default_factory=list)
    frames: FrameCount = dataclasses.field(default_factory=FrameCount)

    def fail(self, problem: Problem, before: int, planned: FrameCount) -> None:
        """Records the problem that ended a file; clips encoded before stay samples."""
        self.problems.append(problem)
        kept = sum(entry.shape.pixels[0] for entry in self.entries[before:])
        decoded = planned.decoded
        self.frames += FrameCount(decoded=decoded, kept=kept, left_out=decoded - kept)


def _write_shard(
    path: Path, samples: Iterable[tuple[Entry, bytes]], entries: list[Entry]
) -> None:
    """Writes records to a shard, and appends their entries as they are written."""
    try:
        writer = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
        for entry, record in samples:
            writer.write(record)
            entries.append(entry)
        writer.close()
    except RuntimeError as error:  # The only type that ArrayRecord raises.
        raise InputError(
            f"{path.parent}: a shard cannot be written ({error}); make room, and run "
            "the same command again: what was done is kept"
        ) from error


Part = ScanPart | EncodePart


def _marked(part: Part, on_file: Callable[[], None]) -> Iterator[MediaFile]:
    """Yields the files of a part, and names the current one in the part's marker."""
    for file in part.files:
        part.marker.write_text(file.name)
        yield file
        on_file()
    part.marker.unlink(missing_ok=True)


def without_deadly(part: Part, deadly: frozenset[str]) -> Part:
    """Returns the part with more files to skip."""
    return dataclasses.replace(part, deadly=part.deadly | deadly)


def _unchanged(media: Path, file: MediaFile) -> Path:
    """Returns the path of a file, after checking that it still has the listed size."""
    path = media / file.name
    num_bytes = path.stat().st_size
    if num_bytes != file.num_bytes:
        sizes = f"{file.num_bytes} bytes were listed, and it has {num_bytes}"
        raise MediaError(CHANGED, sizes)
    return path


def _problem(file: MediaFile, error: MediaError | OSError) -> Problem:
    if isinstance(error, OSError):
        error = MediaError("cannot be read", error.strerror or str(error))
    return Problem(name=file.name, reason=error.reason, detail=error.detail)
