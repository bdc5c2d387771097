"""The Grain source: element i is the micro-batch that the schedule names for i."""

import contextlib
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import SupportsIndex

import grain
import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.schedule import Lockstep
from jaxload.data.batch_memory import make_room
from jaxload.data.manifest import Manifest
from jaxload.data.record import Place, locate
from jaxload.errors import InputError
from jaxload.files import allow_open_files

Batch = Mapping[str, np.ndarray]
"""`latent` [B, F, H, W, C], `text` [B, T, E] and the samples' rows `id` [B]."""


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
        with contextlib.ExitStack() as stack:
            batch = None
            for i, row in enumerate(rows.tolist()):
                data, latent, text = self._read(row)
                if batch is None:
                    batch = _Collated(bucket, rows, latent, text, self._num_text_tokens)
                    stack.callback(batch.close)
                if not batch.takes(latent, text):
                    raise InputError(
                        f"{self._manifest.locate(row)}: expected a latent of "
                        f"{batch.latent_shape} by the manifest and text of width "
                        f"{batch.text_width}, got {latent.shape} and "
                        f"{text.shape[-1]}; prepare the data set again"
                    )
                batch.put(i, memoryview(data), latent, text)
        assert batch is not None, "a micro-batch has a sample"
        return batch.arrays

    def _read(self, row: int) -> tuple[bytes, Place, Place]:
        try:
            data = self._records[row]
            return data, *locate(data)
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"{self._manifest.locate(row)}: cannot be read ({error}); copy the "
                "shard again or prepare the data set again"
            ) from error


class _Collated:
    """Arrays of a micro-batch, filled record by record, each copied once."""

    def __init__(
        self,
        bucket: Bucket,
        rows: np.ndarray,
        latent: Place,
        text: Place,
        num_text_tokens: int,
    ):
        """Makes room; `latent` and `text` are those of the first record."""
        shape = bucket.shape
        self.latent_shape = (shape.frames, shape.height, shape.width, latent.shape[-1])
        self.text_width = text.shape[-1]
        self._latents = make_room((len(rows), *self.latent_shape))
        self._texts = make_room((len(rows), num_text_tokens, self.text_width))
        self.arrays = {
            "latent": self._latents.array,
            "text": self._texts.array,
            "id": rows,
        }
        self._latent_bytes = self._latents.array.nbytes // len(rows)
        self._text_bytes = self._texts.array.nbytes // len(rows)

    def takes(self, latent: Place, text: Place) -> bool:
        """Whether a record has the shapes that were made room for."""
        return latent.shape == self.latent_shape and text.shape[1] == self.text_width

    def put(self, i: int, data: memoryview, latent: Place, text: Place) -> None:
        """Copies a record's latent and text, or what there is room for, to row i."""
        self._latents.write(i * self._latent_bytes, data[latent.start : latent.stop])
        stop = min(text.stop, text.start + self._text_bytes)
        self._texts.write(i * self._text_bytes, data[text.start : stop])

    def close(self) -> None:
        """Ends the writing."""
        self._latents.close()
        self._texts.close()


_OTHER_FILES = 256  # That a process may want open besides the shards.


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
    allow_open_files(len(manifest.shards) + _OTHER_FILES)
    return grain.sources.ArrayRecordDataSource(
        [
            _Whole(str(manifest.directory / shard.name), *[shard.num_records] * 2)
            for shard in manifest.shards
        ]
    )
