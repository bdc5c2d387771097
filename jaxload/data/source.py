"""The Grain source: element i is the micro-batch that the schedule names for i."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import grain
import ml_dtypes
import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.schedule import Lockstep
from jaxload.data.manifest import Manifest
from jaxload.data.record import Record, decode_record
from jaxload.errors import InputError

Batch = Mapping[str, np.ndarray]
"""`latent` [B, F, H, W, C], `text` [B, T, E] and the samples' rows `id` [B]."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where samples come from and how they are read."""

    path: str
    """Directory of the data set: ArrayRecord shards and a manifest."""

    codec: str = "haar"
    """What made the latents: built in, or module:attribute."""

    text_encoder: str = "hashed-ngrams"
    """What made the text embeddings: built in, or module:attribute."""

    num_workers: int = 0
    """Processes that read; with 0, threads of the training process do."""

    num_threads: int = 2
    """Threads that read micro-batches ahead, in each process that reads."""

    num_prefetch: int = 4
    """Micro-batches that are read ahead on the host, by each process that reads."""

    def __post_init__(self):
        for name, least in (
            ("num_workers", 0),
            ("num_threads", 1),
            ("num_prefetch", 1),
        ):
            if getattr(self, name) < least:
                raise InputError(
                    f"data.{name}={getattr(self, name)}: expected {least} or more"
                )

    @property
    def directory(self) -> Path:
        """The data set's directory."""
        return Path(self.path)


class MicroBatchSource:
    """Random access to the micro-batches of some replicas, by micro-step."""

    def __init__(
        self,
        manifest: Manifest,
        schedule: Lockstep,
        *,
        replicas: Sequence[int],
        num_micro_steps: int,
        num_text_tokens: int,
    ):
        self._manifest = manifest
        self._schedule = schedule
        self._replicas = tuple(replicas)
        self._num_micro_steps = num_micro_steps
        self._num_text_tokens = num_text_tokens
        self._records = open_records(manifest)

    def __len__(self) -> int:
        return self._num_micro_steps

    def __getitem__(self, index: SupportsIndex) -> Batch:
        micro_step = operator.index(index)
        micro_batches = [
            self._schedule.micro_batch(micro_step, replica)
            for replica in self._replicas
        ]
        # Lockstep: the bucket is the same for every replica.
        bucket = self._schedule.buckets[micro_batches[0].bucket]
        members = np.concatenate([micro.members for micro in micro_batches])
        return self._collate(
            bucket, self._manifest.rows_by_shape[bucket.shape][members]
        )

    def _collate(self, bucket: Bucket, rows: np.ndarray) -> Batch:
        records = [self._read(row) for row in rows.tolist()]
        shape, first = bucket.shape, records[0]
        size = (shape.frames, shape.height, shape.width, first.latent.shape[-1])
        text_size = (self._num_text_tokens, first.text.shape[-1])
        for row, record in zip(rows.tolist(), records, strict=True):
            if record.latent.shape != size or record.text.shape[1:] != text_size[1:]:
                self._refuse(row, record, size, text_size)
        batch = {
            "latent": _new_array((len(rows), *size)),
            "text": _new_array((len(rows), *text_size)),
            "id": rows,
        }
        latent, text = (batch[name].view(np.ndarray) for name in ("latent", "text"))
        for i, record in enumerate(records):
            latent[i] = record.latent
            tokens = record.text[: text_size[0]]
            text[i, : len(tokens)] = tokens
            text[i, len(tokens) :] = 0
        return batch

    def _read(self, row: int) -> Record:
        try:
            return decode_record(self._records[row])
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"{self._manifest.locate(row)}: cannot be read ({error}); copy the "
                "shard again or prepare the data set again"
            ) from error

    def _refuse(self, row: int, record: Record, size: Any, text_size: Any) -> None:
        raise InputError(
            f"{self._manifest.locate(row)}: expected a latent of {size} by the "
            f"manifest and text of width {text_size[1]}, got {record.latent.shape} and "
            f"{record.text.shape[-1]}; prepare the data set again"
        )


_in_worker = False


def enter_worker(index: int, count: int) -> None:
    """Has this process read for another one: into memory that both can see."""
    global _in_worker
    _in_worker = True


def _new_array(shape: tuple[int, ...]) -> np.ndarray:
    if _in_worker:
        return grain.multiprocessing.SharedMemoryArray(shape, _BFLOAT16)
    return np.empty(shape, _BFLOAT16)


@dataclasses.dataclass
class _Whole:
    """All records of a shard, in the words of ArrayRecord's file instructions.

    With the number given, a shard need not be opened before something of it is read.
    """

    filename: str
    take: int
    examples_in_shard: int
    skip: int = 0


def open_records(manifest: Manifest) -> grain.sources.ArrayRecordDataSource:
    """The records of a data set, by row; shards are opened when they are needed."""
    return grain.sources.ArrayRecordDataSource(
        [
            _Whole(str(manifest.directory / shard.name), *[shard.num_records] * 2)
            for shard in manifest.shards
        ]
    )
