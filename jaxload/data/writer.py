"""Writes a data set: ArrayRecord shards and their manifest, whole or not at all."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

from jaxload.data.manifest import Entry, Shard, shard_digest, write_manifest
from jaxload.errors import InputError

# One record a group: a reader then decompresses only the record it was asked for.
_WRITER_OPTIONS = "group_size:1"


def write_dataset(
    directory: Path,
    samples: Iterable[tuple[Entry, bytes]],
    *,
    samples_per_shard: int,
    fingerprint: Mapping[str, object],
) -> None:
    """Writes entries and their records into a directory that does not exist yet.

    Everything goes into a sibling directory first, which then takes the final name: a
    process that is killed leaves no data set behind that looks complete.
    """
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"data set {directory}: cannot be written ({error.strerror}); choose "
            "another data.path"
        ) from error
    try:
        entries, shards = _write_shards(partial, samples, samples_per_shard)
        write_manifest(partial, entries, shards, fingerprint)
        partial.rename(directory)
    except OSError:
        if not directory.exists():
            raise
        # Another process was faster; readers check that it wrote what they want.
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # Only there if something failed.


def _write_shards(
    directory: Path, samples: Iterable[tuple[Entry, bytes]], samples_per_shard: int
) -> tuple[list[Entry], list[Shard]]:
    entries: list[Entry] = []
    shards: list[Shard] = []
    writer, path, num_records = None, directory, 0

    def close() -> None:
        if writer is not None:
            writer.close()
            shards.append(
                Shard(
                    name=path.name,
                    num_records=num_records,
                    num_bytes=path.stat().st_size,
                    digest=shard_digest(path),
                )
            )

    for entry, record in samples:
        if writer is None or num_records == samples_per_shard:
            close()
            path = directory / f"shard-{len(shards):05d}.array_record"
            writer, num_records = ArrayRecordWriter(str(path), _WRITER_OPTIONS), 0
        writer.write(record)
        entries.append(entry)
        num_records += 1
    close()
    return entries, shards
