"""What is to be prepared, and the parts that the work is cut into.

A part is some consecutive files of the listing, the same on every machine. Each part is
scanned on its own, and then encoded into a shard of its own; both end with a table in
`parts/` that is there whole or not at all. So any part can be done by anyone at any
time, again after a crash, and always with the same bytes.
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
"""Of the records: raised when the same media would give other ones."""

_MIN_PARTS = 64  # So that a small folder keeps several workers busy.

# Of a part: what a crash may lose of one worker's work. Large enough that millions of
# files make thousands of shards, which a process can hold open and check at its start.
_MAX_FILES = 4_096
_MAX_BYTES = 1 << 30

# One record a group: a reader then reads only the record it was asked for. Compression
# would save little of a latent, and slow down every read of it.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is to be made of which files, and where."""

    media: Path
    out: Path
    codec: str
    text_encoder: str
    text_dim: int
    rules: ShapeRules
    max_shapes: int
    """Shapes that may be chosen; of no meaning where they are given."""

    shapes: tuple[Shape, ...] | None = None
    """Of a plan; None: chosen from what the files are."""

    origin: str = "a folder of media"
    """Where the media come from, for those who compare data sets."""

    def load(self) -> tuple[Codec, TextEncoder]:
        """What encodes clips and captions, made once in each process."""
        encoder = load_text_encoder(self.text_encoder, self.text_dim)
        return load_codec(self.codec), encoder

    def fingerprint(self, listing: Listing) -> dict[str, Any]:
        """All that the records depend on, in words that a message can show."""
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
    """Consecutive files, the same parts for the same files."""
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
    """Decodes the files of a part, to know what they are."""

    preparation: Preparation
    index: int
    files: tuple[MediaFile, ...]
    deadly: frozenset[str] = frozenset()
    """Files that are not touched, because workers died of them."""

    @property
    def marker(self) -> Path:
        """Where a worker says which file it is at."""
        return marker_path(self.preparation.out, "scan", self.index)

    def __call__(self, on_file: Callable[[], None]) -> None:
        self.marker.unlink(missing_ok=True)  # Of a worker that was killed.
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
        """Where a worker says which file it is at."""
        return marker_path(self.preparation.out, "part", self.index)

    def __call__(self, on_file: Callable[[], None]) -> None:
        self.marker.unlink(missing_ok=True)  # Of a worker that was killed.
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
            if found is None:  # It has a problem already.
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
            except Exception as error:  # Of any codec or encoder; counted, and named.
                detail = f"{type(error).__name__}: {error}"
                problem = Problem(name=file.name, reason=FAILED, detail=detail)
                progress.fail(problem, before, cutting.frames)
            else:
                progress.frames += cutting.frames


@dataclasses.dataclass
class _Progress:
    """What a part has come to so far."""

    entries: list[Entry] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    left_out: list[LeftOutClip] = dataclasses.field(default_factory=list)
    frames: FrameCount = dataclasses.field(default_factory=FrameCount)

    def fail(self, problem: Problem, before: int, planned: FrameCount) -> None:
        """Notes what ended a file; the clips before that are samples like any other."""
        self.problems.append(problem)
        kept = sum(entry.shape.pixels[0] for entry in self.entries[before:])
        decoded = planned.decoded
        self.frames += FrameCount(decoded=decoded, kept=kept, left_out=decoded - kept)


def _write_shard(
    path: Path, samples: Iterable[tuple[Entry, bytes]], entries: list[Entry]
) -> None:
    """Writes records, and adds their entries as they are written."""
    try:
        writer = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
        for entry, record in samples:
            writer.write(record)
            entries.append(entry)
        writer.close()
    except RuntimeError as error:  # All that ArrayRecord raises.
        raise InputError(
            f"{path.parent}: a shard cannot be written ({error}); make room, and run "
            "the same command again: what was done is kept"
        ) from error


Part = ScanPart | EncodePart


def _marked(part: Part, on_file: Callable[[], None]) -> Iterator[MediaFile]:
    """The files of a part; a marker names the one that is worked on."""
    for file in part.files:
        part.marker.write_text(file.name)
        yield file
        on_file()
    part.marker.unlink(missing_ok=True)


def without_deadly(part: Part, deadly: frozenset[str]) -> Part:
    """The same part, with files that it must not touch."""
    return dataclasses.replace(part, deadly=part.deadly | deadly)


def _unchanged(media: Path, file: MediaFile) -> Path:
    """The path of a file that has the size that was listed."""
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
