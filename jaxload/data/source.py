"""The Grain source: element i is the micro-batch that the schedule names for i."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import SupportsIndex

import grain
import ml_dtypes
import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.schedule import Lockstep
from jaxload.data.manifest import Manifest
from jaxload.data.record import Record, decode_record
from jaxload.data.text import pad_text
from jaxload.errors import InputError

Batch = Mapping[str, np.ndarray]
"""`latent` [B, F, H, W, C], `text` [B, T, E] and the samples' rows `id` [B]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where samples come from and how they are read."""

    path: str
    """Directory of the data set: ArrayRecord shards and a manifest."""

    num_threads: int = 2
    """Threads that read micro-batches ahead."""

    num_prefetch: int = 4
    """Micro-batches that are read ahead on the host."""

    def __post_init__(self):
        for name in ("num_threads", "num_prefetch"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"data.{name}={getattr(self, name)}: expected 1 or more"
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
        self._records = _open_shards(manifest)
        rows_by_shape = manifest.rows_by_shape()
        self._rows = [rows_by_shape[bucket.shape] for bucket in schedule.buckets]

    def __len__(self) -> int:
        return self._num_micro_steps

    def __getitem__(self, index: SupportsIndex) -> Batch:
        micro_step = operator.index(index)
        micro_batches = [
            self._schedule.micro_batch(micro_step, replica)
            for replica in self._replicas
        ]
        bucket = micro_batches[0].bucket  # Lockstep: the same for every replica.
        members = np.concatenate([micro.members for micro in micro_batches])
        rows = self._rows[bucket][members]
        return self._collate(self._schedule.buckets[bucket], rows)

    def _collate(self, bucket: Bucket, rows: np.ndarray) -> Batch:
        shape, texts = bucket.shape, self._num_text_tokens
        records = [self._read(int(row)) for row in rows]
        channels, width = records[0].latent.shape[-1], records[0].text.shape[-1]
        latent = np.empty(
            (len(rows), shape.frames, shape.height, shape.width, channels),
            dtype=ml_dtypes.bfloat16,
        )
        text = np.empty((len(rows), texts, width), dtype=ml_dtypes.bfloat16)
        for i, record in enumerate(records):
            if record.latent.shape != latent.shape[1:]:
                raise InputError(
                    f"{self._manifest.locate(int(rows[i]))}: expected a latent of "
                    f"{latent.shape[1:]} by the manifest, got {record.latent.shape}; "
                    "prepare the data set again"
                )
            latent[i] = record.latent
            text[i] = pad_text(record.text, texts)
        return {"latent": latent, "text": text, "id": rows.astype(np.int32)}

    def _read(self, row: int) -> Record:
        try:
            return decode_record(self._records[row])
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{self._manifest.locate(row)}: cannot be read ({error}); copy the "
                "shard again or prepare the data set again"
            ) from error


def _open_shards(manifest: Manifest) -> grain.sources.ArrayRecordDataSource:
    try:
        return grain.sources.ArrayRecordDataSource(manifest.shard_paths())
    except RuntimeError as error:
        raise InputError(
            f"data set {manifest.directory}: a shard cannot be opened ({error}); copy "
            "it again or prepare the data set again"
        ) from error


def micro_batches(
    source: MicroBatchSource, config: DataConfig, *, start: int
) -> grain.IterDataset:
    """Reads a source from a micro-step on, ahead of its consumer."""
    dataset = grain.MapDataset.source(source).slice(slice(start, None))
    return dataset.to_iter_dataset(
        grain.ReadOptions(
            num_threads=config.num_threads, prefetch_buffer_size=config.num_prefetch
        )
    )
