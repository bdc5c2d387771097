"""Grain source of the micro-batches of a schedule."""

import contextlib
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple, SupportsIndex

import grain
import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.form import Length
from jaxload.balance.schedule import MicroBatch, Schedule
from jaxload.data.batch_memory import make_buffer
from jaxload.data.form_rows import FormRows, SampleSizes
from jaxload.data.manifest import Manifest
from jaxload.data.record import BFLOAT16, TensorRange, locate
from jaxload.errors import InputError
from jaxload.files import allow_open_files

Arrays = Mapping[str, np.ndarray]
"""Arrays of a micro-batch; see `jaxload.data.batch_spec`."""


_MAX_RECENT = 64  # Steps whose order is cached.
_NUM_COUNTED = 8  # Steps that `share_of_elements` samples for its estimate.


class HostBatch(NamedTuple):
    """A micro-batch in host memory, with the step and replica that run it."""

    step: int
    replica: int
    bucket: int
    """Index into the schedule's catalogue."""

    arrays: Arrays


class MicroBatchSource:
    """Random access to the micro-batches of the given replicas.

    An element is one micro-batch and not a step, so that memory holds only prefetched
    micro-batches, even if a step accumulates many. Every step has the same number of
    elements, `schedule.max_micro_batches` per replica; if the step has fewer
    micro-batches, its last elements are None. Micro-batches of a step are ordered by
    planned start time, so that no group is idle while the loop waits for another.
    """

    def __init__(
        self,
        manifest: Manifest,
        schedule: Schedule,
        *,
        replicas: Sequence[int],
        num_at_once: int,
        num_steps: int,
        num_text_tokens: int,
    ):
        """Opens the records of a dataset.

        Args:
            manifest: Manifest of the dataset.
            schedule: Schedule that names the samples of each micro-batch.
            replicas: Replicas of this host, in the order in which they run.
            num_at_once: Number of local groups, which each run one replica at a time.
            num_steps: Steps of the run.
            num_text_tokens: Number of tokens to pad or cut text embeddings to.
        """
        self._manifest = manifest
        self._schedule = schedule
        self._num_steps = num_steps
        self.num_at_once = num_at_once
        self._num_text_tokens = num_text_tokens
        self._replicas = list(replicas)
        forms = dict.fromkeys(bucket.form for bucket in schedule.buckets)
        self._form_rows = FormRows(manifest, tuple(forms))
        self._records = open_records(manifest)
        self._recent: dict[int, list[tuple[int, MicroBatch]]] = {}

    @property
    def elements_per_step(self) -> int:
        """Number of elements per step, including those that are None."""
        return len(self._replicas) * self._schedule.max_micro_batches

    def num_micro_batches(self, step: int) -> int:
        """Returns the number of micro-batches of a step, over the given replicas."""
        return int(self._schedule.step_counts(step)[self._replicas].sum())

    def share_of_elements(self, first_step: int) -> float:
        """Estimates the share of elements that are not None, from `first_step` on."""
        steps = range(first_step, min(first_step + _NUM_COUNTED, self._num_steps))
        count = sum(self.num_micro_batches(step) for step in steps)
        return count / max(1, len(steps) * self.elements_per_step)

    def __len__(self) -> int:
        return self._num_steps * self.elements_per_step

    def __getitem__(self, index: SupportsIndex) -> HostBatch | None:
        step, position = divmod(operator.index(index), self.elements_per_step)
        in_order = self._in_order(step)
        if position >= len(in_order):
            return None
        replica, micro_batch = in_order[position]
        bucket = self._schedule.buckets[micro_batch.bucket]
        rows, sizes = self._form_rows.take(bucket.form, micro_batch.members)
        arrays = self._collate(bucket, rows, sizes)
        return HostBatch(step, replica, micro_batch.bucket, arrays)

    def _in_order(self, step: int) -> list[tuple[int, MicroBatch]]:
        """Returns a step's micro-batches with their replicas, by planned start time."""
        found = self._recent.get(step)
        if found is None:
            found = self._sort(step)
            if len(self._recent) >= _MAX_RECENT:
                self._recent.clear()  # No lock: after a race, threads only sort again.
            self._recent[step] = found
        return found

    def _sort(self, step: int) -> list[tuple[int, MicroBatch]]:
        clocks = [0.0] * self.num_at_once
        starts: list[tuple[float, int, MicroBatch]] = []
        for index, replica in enumerate(self._replicas):
            group = index % self.num_at_once  # A group's replicas run in turn.
            for micro_batch in self._schedule.micro_batches(step, replica):
                starts.append((clocks[group], replica, micro_batch))
                clocks[group] += self._schedule.buckets[micro_batch.bucket].cost
        starts.sort(key=lambda start: start[0])  # Stable: keeps each replica's order.
        return [(replica, micro_batch) for _, replica, micro_batch in starts]

    def _collate(
        self, bucket: Bucket, rows: np.ndarray, sizes: Sequence[SampleSizes]
    ) -> Arrays:
        with contextlib.ExitStack() as stack:
            batch = None
            for i, row in enumerate(rows.tolist()):
                data, tokens, text = self._read(row)
                if batch is None:
                    widths = tokens.shape[1], text.shape[1]
                    batch = _Collated(
                        bucket, rows, sizes, widths, self._num_text_tokens
                    )
                    stack.callback(batch.close)
                if not batch.takes(i, tokens, text):
                    raise InputError(
                        f"{self._manifest.locate(row)}: expected "
                        f"{sizes[i].num_stored} tokens by the manifest, of "
                        f"{batch.token_width} channels, and text of width "
                        f"{batch.text_width}, got {tokens.shape} and "
                        f"{text.shape[-1]}; prepare the dataset again"
                    )
                batch.put(i, memoryview(data), tokens, text)
        assert batch is not None, "a micro-batch has a sample"
        return batch.arrays

    def _read(self, row: int) -> tuple[bytes, TensorRange, TensorRange]:
        try:
            data = self._records[row]
            return data, *locate(data)
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"{self._manifest.locate(row)}: cannot be read ({error}); copy the "
                "shard again or prepare the dataset again"
            ) from error


class _Collated:
    """Arrays of a micro-batch; each record is copied into them once."""

    def __init__(
        self,
        bucket: Bucket,
        rows: np.ndarray,
        sizes: Sequence[SampleSizes],
        widths: tuple[int, int],
        num_text_tokens: int,
    ):
        """Allocates the arrays; `widths` are those of tokens and of text."""
        batch = len(rows)
        self.token_width, self.text_width = widths
        self._sizes = sizes
        self._tokens = make_buffer((batch, bucket.tokens, self.token_width))
        self._texts = make_buffer((batch, num_text_tokens, self.text_width))
        arrays = {"tokens": self._tokens.array, "text": self._texts.array}
        if isinstance(bucket.form, Length):
            arrays["grid"] = np.array([size.grid for size in sizes], np.int32)
        arrays["id"] = rows
        self.arrays = arrays
        self._token_bytes = self.token_width * BFLOAT16.itemsize
        self._row_bytes = self._tokens.array.nbytes // batch
        self._text_bytes = self._texts.array.nbytes // batch

    def takes(self, i: int, tokens: TensorRange, text: TensorRange) -> bool:
        """Returns whether record i has the tokens of its shape, and equal widths."""
        expected = (self._sizes[i].num_stored, self.token_width)
        return tokens.shape == expected and text.shape[1] == self.text_width

    def put(
        self, i: int, data: memoryview, tokens: TensorRange, text: TensorRange
    ) -> None:
        """Copies the tokens that run, and as much of the text as the array holds."""
        stop = tokens.start + self._sizes[i].num_tokens * self._token_bytes
        self._tokens.write(i * self._row_bytes, data[tokens.start : stop])
        stop = min(text.stop, text.start + self._text_bytes)
        self._texts.write(i * self._text_bytes, data[text.start : stop])

    def close(self) -> None:
        """Releases the resources for writing; the arrays stay valid."""
        self._tokens.close()
        self._texts.close()


_OTHER_FILES = 256  # Files that a process may open besides the shards.


@dataclasses.dataclass
class _Whole:
    """Instruction for ArrayRecord to read all records of a shard.

    It states the number of records, so that ArrayRecord opens a shard only at its first
    read.
    """

    filename: str
    take: int
    examples_in_shard: int
    skip: int = 0


def open_records(manifest: Manifest) -> grain.sources.ArrayRecordDataSource:
    """Opens the records of a dataset, by row; a shard is opened at its first read."""
    allow_open_files(len(manifest.shards) + _OTHER_FILES)
    return grain.sources.ArrayRecordDataSource(
        [
            _Whole(str(manifest.directory / shard.name), *[shard.num_records] * 2)
            for shard in manifest.shards
        ]
    )
