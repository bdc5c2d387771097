"""Writes the records of a part in the order of its files.

Clips may be encoded in any order; each record waits for the records before it.
"""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np

from jaxload.data.manifest import Entry, entry_table
from jaxload.data.record import Record, encode_record
from jaxload.data.shard import describe_shard
from jaxload.files import replaced
from jaxload.media.batch_encoder import Failure, Result
from jaxload.media.cutting import Clip, Cutting, FrameCount, LeftOutClip
from jaxload.media.encode_step import EncodeStep, Ticket
from jaxload.media.listing import MediaFile
from jaxload.media.part_tables import FAILED, EncodedPart, shard_path, write_encoded
from jaxload.media.problem import Problem
from jaxload.media.shard_writer import ShardWriter
from jaxload.shapes.token_order import to_tokens


class PoisonFileError(Exception):
    """Raised for a file on whose clips encoder processes die."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


@dataclasses.dataclass(kw_only=True)
class FileInWork:
    """A file whose clips are submitted for encoding and not all written yet."""

    file: MediaFile
    cutting: Cutting
    text: Ticket | None = None
    """Ticket for the embedding of the file's caption; None if the file has no clip."""

    num_kept: int = 0
    """Frames of the clips written so far."""

    problem: Problem | None = None
    """First failure of the file; clips after that failure are not written."""

    @property
    def caption(self) -> str:
        """Caption of the file; empty if the file has none."""
        return self.file.caption or ""

    def fail(self, failure: Failure) -> None:
        """Records the first failure of the file; clips written earlier are kept.

        Raises:
            PoisonFileError: The file kills encoder processes.
        """
        if failure.is_poison:
            raise PoisonFileError(self.file.name)
        if self.problem is None:
            name = self.file.name
            self.problem = Problem(name=name, reason=FAILED, detail=failure.detail)

    def frames(self) -> FrameCount:
        """Counts the file's frames by outcome; see `FrameCount`."""
        planned = self.cutting.frames
        if self.problem is None:
            return planned
        decoded, kept = planned.decoded, self.num_kept
        return FrameCount(decoded=decoded, kept=kept, left_out=decoded - kept)


@dataclasses.dataclass(frozen=True)
class _ClipInWork:
    """A submitted clip of a file, and the ticket for the clip's latent."""

    work: FileInWork
    clip: Clip
    latent: Ticket


@dataclasses.dataclass(frozen=True)
class _End:
    """Marks the end of a file in the queue; `work` is None if the file was skipped."""

    work: FileInWork | None
    problem: Problem | None


class PartWriter:
    """Writes the shard and the table of a part.

    Use as a context manager, and call `finish` in the context. If an exception ends the
    context earlier, the incomplete shard is removed.
    """

    def __init__(
        self, out: Path, index: int, step: EncodeStep, on_file: Callable[[], None]
    ):
        self._out = out
        self._index = index
        self._step = step
        self._on_file = on_file
        self._queue: deque[_ClipInWork | _End] = deque()
        self._stack = contextlib.ExitStack()
        self._entries: list[Entry] = []
        self._problems: list[Problem] = []
        self._left_out: list[LeftOutClip] = []
        self._frames = FrameCount()

    def __enter__(self) -> "PartWriter":
        partial = self._stack.enter_context(replaced(self._path))
        self._shard = ShardWriter(partial)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._step.num_unwritten -= len(self._queue)
        self._stack.__exit__(error_type, error, trace)

    @property
    def num_waiting(self) -> int:
        """Number of clips and ends of files that are not written yet."""
        return len(self._queue)

    def add(self, work: FileInWork, clip: Clip, latent: Ticket) -> None:
        """Adds the next clip of a file, with the ticket for its latent."""
        self._add(_ClipInWork(work, clip, latent))

    def end(self, work: FileInWork, problem: Problem | None) -> None:
        """Ends a file; `problem` is the reason if decoding stopped early."""
        self._add(_End(work, problem))

    def skip(self, problem: Problem | None = None) -> None:
        """Adds a file without clips, and the problem to report for it, if any."""
        self._add(_End(None, problem))

    def write_ready(self) -> None:
        """Writes the longest prefix of the queue whose results are all available."""
        while self._queue and _is_ready(self._queue[0]):
            self._step.num_unwritten -= 1
            item = self._queue.popleft()
            if isinstance(item, _ClipInWork):
                self._write_clip(item)
            else:
                self._write_end(item)

    def finish(self) -> None:
        """Renames the shard to its final path, then writes the table of the part.

        The table comes last, because it marks the part as encoded.
        """
        self._shard.close()
        self._stack.close()
        shard = None
        if self._entries:
            shard = describe_shard(self._path, len(self._entries))
        else:
            self._path.unlink(missing_ok=True)
        part = EncodedPart(
            entries=entry_table(self._entries),
            shard=shard,
            problems=self._problems,
            left_out=self._left_out,
            frames=self._frames,
        )
        write_encoded(self._out, self._index, part)

    @property
    def _path(self) -> Path:
        return shard_path(self._out, self._index)

    def _add(self, item: _ClipInWork | _End) -> None:
        self._queue.append(item)
        self._step.num_unwritten += 1

    def _write_clip(self, item: _ClipInWork) -> None:
        work, shape = item.work, item.clip.shape
        text, latent = _text(work), item.latent.result
        failure = next((r for r in (text, latent) if isinstance(r, Failure)), None)
        if failure is not None:
            work.fail(failure)
        if work.problem is not None:
            return
        assert isinstance(text, np.ndarray)
        assert isinstance(latent, np.ndarray)
        tokens = to_tokens(latent, shape.geometry.patch)
        self._shard.write(encode_record(Record(tokens=tokens, text=text)))
        work.num_kept += shape.pixels[0]
        self._entries.append(
            Entry(
                id=item.clip.id,
                source=work.file.name,
                start=item.clip.first,
                caption=work.caption,
                text_tokens=len(text),
                shape=shape,
            )
        )

    def _write_end(self, item: _End) -> None:
        work = item.work
        if work is None:
            self._problems += [item.problem] if item.problem else []
        else:
            if isinstance(text := _text(work), Failure):
                work.fail(text)
            work.problem = work.problem or item.problem
            self._problems += [work.problem] if work.problem else []
            self._left_out += work.cutting.left_out
            self._frames += work.frames()
        self._on_file()


def _text(work: FileInWork) -> Result | None:
    return None if work.text is None else work.text.result


def _is_ready(item: _ClipInWork | _End) -> bool:
    tickets = [item.work.text] if item.work is not None else []
    if isinstance(item, _ClipInWork):
        tickets.append(item.latent)
    return all(ticket is None or ticket.result is not None for ticket in tickets)
