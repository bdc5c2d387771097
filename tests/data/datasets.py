"""Data sets that tests write without media."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordWriter

from jaxload.data.manifest import (
    FILE_NAME,
    Entry,
    Manifest,
    Shard,
    describe_shard,
    entry_table,
    write_manifest,
)
from jaxload.data.source import open_records


def write_dataset(
    directory: Path,
    samples: Iterable[tuple[Entry, bytes]],
    *,
    samples_per_shard: int = 1_000,
    fingerprint: dict | None = None,
) -> None:
    """Writes entries and their records, some to a shard."""
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
    """Copies a data set, all its records into one shard."""
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
