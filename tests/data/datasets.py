"""Datasets written without media, and the micro-batches that loaders must return."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import grain
import ml_dtypes
import numpy as np
import pyarrow.parquet as pq
import safetensors
from array_record.python.array_record_module import ArrayRecordWriter

from jaxload.balance.bucket import Bucket
from jaxload.balance.form import Form, Grid
from jaxload.balance.program import Program
from jaxload.balance.sample_class import Lengths
from jaxload.balance.schedule import MicroBatch, Schedule
from jaxload.data.manifest import (
    Entry,
    Manifest,
    entry_table,
    write_manifest,
)
from jaxload.data.manifest_metadata import FILE_NAME
from jaxload.data.record import decode_record
from jaxload.data.shard import Shard, describe_shard
from jaxload.data.source import HostBatch, open_records
from jaxload.shapes.shape import Shape
from jaxload.shapes.token_order import to_latent
from tests.balance.grid_samples import grid_bucket, shape_of


def write_dataset(
    directory: Path,
    samples: Iterable[tuple[Entry, bytes]],
    *,
    samples_per_shard: int = 1_000,
    fingerprint: dict | None = None,
) -> None:
    """Writes a dataset of the given entries and records."""
    samples = list(samples)
    directory.mkdir(parents=True)
    shards: list[Shard] = []
    for start in range(0, len(samples), samples_per_shard):
        path = directory / f"shard-{len(shards):05d}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        records = [record for _, record in samples[start : start + samples_per_shard]]
        for record in records:
            writer.write(record)
        writer.close()
        shards.append(describe_shard(path, len(records)))
    table = entry_table([entry for entry, _ in samples])
    write_manifest(directory, [table], shards, fingerprint or {})


def write_as_one_shard(manifest: Manifest, directory: Path) -> None:
    """Copies a dataset, all its records into one shard."""
    records = open_records(manifest)
    directory.mkdir(parents=True)
    path = directory / "shard-00000.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for row in range(len(manifest)):
        writer.write(records[row])
    writer.close()
    table = pq.read_table(manifest.directory / FILE_NAME).replace_schema_metadata(None)
    shards = [describe_shard(path, len(manifest))]
    write_manifest(directory, [table], shards, manifest.fingerprint)


def read_latent(data: bytes, shape: Shape) -> np.ndarray:
    """Returns the latent of a record, given its shape."""
    tokens = decode_record(data).tokens
    return to_latent(tokens, shape.token_grid, shape.geometry.patch)


def make_bucket(
    form: Shape | Form, batch: int, num_samples: int, cost: float = 1.0
) -> Bucket:
    """Returns a bucket; all have the same cost by default."""
    form = Grid.of(form) if isinstance(form, Shape) else form
    program = Program(form=form, batch=batch)
    if isinstance(form, Grid):
        return grid_bucket(program, num_samples, cost)
    lengths = Lengths(
        shortest=1,
        longest=form.tokens,
        mean=form.tokens / 2,
        num_grids=num_samples,
        num_images=0,
    )
    return Bucket(program=program, num_samples=num_samples, lengths=lengths, cost=cost)


def load_record(data: bytes) -> dict[str, np.ndarray]:
    """Decodes a record with the safetensors library."""
    return {
        name: np.frombuffer(tensor["data"], ml_dtypes.bfloat16).reshape(tensor["shape"])
        for name, tensor in safetensors.deserialize(data)
    }


def read_one_by_one(
    manifest: Manifest,
    schedule: Schedule,
    *,
    num_groups: int,
    num_steps: int,
    num_text_tokens: int,
) -> Iterator[HostBatch]:
    """Yields the micro-batches of a schedule, reading records one by one.

    Args:
        manifest: Describes the dataset.
        schedule: Names the samples of each micro-batch.
        num_groups: Number of groups; each runs its replicas in turn.
        num_steps: Steps to read, from the first.
        num_text_tokens: Length that texts are padded or truncated to.
    """
    paths = [str(manifest.directory / shard.name) for shard in manifest.shards]
    records = grain.sources.ArrayRecordDataSource(paths)
    for step in range(num_steps):
        for replica, micro_batch in _in_order(schedule, step, num_groups):
            bucket = schedule.buckets[micro_batch.bucket]
            rows = manifest.rows_by_shape[shape_of(bucket)][micro_batch.members]
            decoded = [load_record(records[row]) for row in rows.tolist()]
            arrays = _stack(decoded, num_text_tokens) | {"id": rows}
            yield HostBatch(step, replica, micro_batch.bucket, arrays)


def _in_order(
    schedule: Schedule, step: int, num_groups: int
) -> Iterator[tuple[int, MicroBatch]]:
    """Simulates a step: the group that is free first starts the next micro-batch."""
    waiting = [
        [
            (replica, micro_batch)
            for replica in range(group, schedule.num_replicas, num_groups)
            for micro_batch in schedule.micro_batches(step, replica)
        ]
        for group in range(num_groups)
    ]
    free_at = [0.0] * num_groups
    while any(waiting):
        group = min(
            (g for g in range(num_groups) if waiting[g]),
            key=lambda g: (free_at[g], waiting[g][0][0]),
        )
        replica, micro_batch = waiting[group].pop(0)
        free_at[group] += schedule.buckets[micro_batch.bucket].cost
        yield replica, micro_batch


def _stack(
    records: Sequence[dict[str, np.ndarray]], num_text_tokens: int
) -> dict[str, np.ndarray]:
    width = records[0]["text"].shape[1]
    text = np.zeros((len(records), num_text_tokens, width), ml_dtypes.bfloat16)
    for padded, record in zip(text, records, strict=True):
        tokens = record["text"][:num_text_tokens]
        padded[: len(tokens)] = tokens
    return {"tokens": np.stack([record["tokens"] for record in records]), "text": text}


def assert_same(found: Iterable[HostBatch], expected: Iterable[HostBatch]) -> None:
    """Asserts that micro-batches have equal steps, replicas, buckets and arrays."""
    for one, two in zip(found, expected, strict=True):
        assert one[:-1] == two[:-1]
        assert one.arrays.keys() == two.arrays.keys()
        for name, array in one.arrays.items():
            assert array.dtype == two.arrays[name].dtype
            np.testing.assert_array_equal(array, two.arrays[name])
