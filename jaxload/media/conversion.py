"""Converts a dataset to the records of a model, without its media.

The new dataset has the same samples, rows, masks and generations, and what an update on
the same media needs. It is written to a hidden directory beside `out`, which is renamed
at the end, so that `out` is either missing or whole. Shards that are written are kept
if the conversion is interrupted. The source is only read.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.console import Console, phase
from jaxload.data.generation import num_covered
from jaxload.data.manifest import Manifest, write_manifest
from jaxload.data.manifest_metadata import (
    FILE_NAME,
    SIZES,
    Metadata,
    damaged,
    read_metadata,
)
from jaxload.data.shard import Shard, check_shard
from jaxload.errors import InputError
from jaxload.files import read_json, remove_leftovers, write_atomically
from jaxload.media.attempts import CONVERSION
from jaxload.media.claim import FINGERPRINT
from jaxload.media.converted_records import ConvertedRecords
from jaxload.media.history import copy_updates, read_history
from jaxload.media.merged_parts import write_scan_table
from jaxload.media.part_tables import (
    copy_scans,
    parts_directory,
    read_encoded,
    with_starts,
    write_encoded,
)
from jaxload.media.preparation import Conversion, planned_sizes
from jaxload.media.size_choice import copy_sizes
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

_REPORT = "report.csv"


def convert(source: Path, out: Path, conversion: Conversion, console: Console) -> int:
    """Converts a dataset; returns the number of its records.

    Raises:
        InputError: `out` exists, the source is damaged or was made by another codec, or
            its sizes are no multiples of the patch.
    """
    metadata = _check(source, out, conversion)
    manifest = _open(source, metadata)
    for shard in manifest.shards:
        check_shard(source, shard)
    sizes = _read_sizes(source, conversion)
    num_updates = num_covered(metadata.generations)
    partial = _begin(source, out, conversion, manifest, num_updates)
    shards = _write_shards(manifest, metadata, sizes, partial, conversion, console)
    try:
        if (source / FINGERPRINT).exists():
            _write_history(source, partial, num_updates, shards, conversion)
        if (source / _REPORT).exists():
            shutil.copyfile(source / _REPORT, partial / _REPORT)
    except OSError as error:
        raise InputError(
            f"--convert {source}: {error.filename or partial} cannot be copied "
            f"({error.strerror or error}); run the same command again, which continues"
        ) from error
    _write_manifest(source, partial, metadata, shards, conversion)
    try:
        os.rename(partial, out)
    except OSError as error:
        raise InputError(
            f"--out {out}: the finished dataset cannot be moved there from {partial} "
            f"({error.strerror}); choose another --out"
        ) from error
    return len(manifest)


def _check(source: Path, out: Path, conversion: Conversion) -> Metadata:
    """Refuses paths and datasets that cannot be converted, before any work."""
    metadata = read_metadata(source)
    if metadata is None:
        raise InputError(
            f"--convert {source}: expected a prepared dataset with {FILE_NAME}, found "
            "none; finish it with the version that began it, or check the path"
        )
    resolved, target = source.resolve(), out.resolve()
    if target == resolved or resolved in target.parents:
        raise InputError(
            f"--out {out}: expected a directory outside the dataset to convert, which "
            "stays as it is; choose another"
        )
    if out.exists() or out.is_symlink():
        raise InputError(f"--out {out}: exists already; choose another, or remove it")
    patch, wanted = metadata.patch, conversion.geometry.patch
    if patch == wanted:
        raise InputError(
            f"--convert {source}: its records hold tokens of patch "
            f"{'x'.join(map(str, wanted))} already; use it as it is"
        )
    fingerprint = metadata.generations[-1].fingerprint
    codec = fingerprint.get("codec", conversion.codec)
    if codec != conversion.codec:
        raise InputError(
            f"--convert {source}: was made with data.codec={codec}, got "
            f"{conversion.codec}; set --codec {codec}"
        )
    strides = str(conversion.geometry).partition(" and ")[0]
    found = str(fingerprint.get("geometry", DEFAULT)).partition(" and ")[0]
    if found != strides:
        raise InputError(
            f"--convert {source}: expected {strides}, as of codec {codec}, got "
            f"{found}; use the version of the codec that made the dataset"
        )
    return metadata


def _open(source: Path, metadata: Metadata) -> Manifest:
    return Manifest(
        directory=source,
        shards=metadata.shards,
        fingerprint=metadata.generations[-1].fingerprint,
    )


def _read_sizes(source: Path, conversion: Conversion) -> np.ndarray:
    """Reads the latent sizes of all rows, and checks that the patch divides them."""
    path = source / FILE_NAME
    try:
        table = pq.read_table(path, columns=list(SIZES))
        sizes = np.stack([table[name].to_numpy() for name in SIZES], axis=1)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error
    for frames, height, width in np.unique(sizes, axis=0).tolist():
        try:
            Shape(frames, height, width, conversion.geometry)
        except InputError as error:
            raise InputError(
                f"--convert {source}: {error}; prepare the media for this model into "
                "another --out"
            ) from error
    return sizes


def _begin(
    source: Path,
    out: Path,
    conversion: Conversion,
    manifest: Manifest,
    num_updates: int,
) -> Path:
    """Makes the hidden directory, or continues in that of the same conversion."""
    partial = out.with_name(f".{out.name}.converting")
    has_history = (source / FINGERPRINT).exists()
    content = {
        "source": str(source.resolve()),
        "digest": manifest.digest(),
        "geometry": str(conversion.geometry),
        "num_parts": read_history(source).num_parts(num_updates) if has_history else 0,
    }
    path = partial / CONVERSION
    try:
        parts_directory(partial).mkdir(parents=True, exist_ok=True)
        remove_leftovers(partial)
        remove_leftovers(parts_directory(partial))
        done = sum((partial / shard.name).exists() for shard in manifest.shards)
    except OSError as error:
        raise InputError(
            f"--out {out}: cannot be written ({error.strerror}); choose another"
        ) from error
    if not path.exists() and not done:
        write_atomically(path, json.dumps(content))
    found = read_json(path, remedy="remove its directory")
    for name, value in content.items():
        if found.get(name) != value:
            raise InputError(
                f"{partial}: holds the conversion of another dataset or for another "
                f"model ({name} {found.get(name)!r:.80}, got {value!r:.80}); remove it"
            )
    left = [s.num_bytes for s in manifest.shards if not (partial / s.name).exists()]
    free = shutil.disk_usage(partial).free
    if sum(left) > free:
        raise InputError(
            f"--out {out}: expected {sum(left) / 1e9:,.1f} GB of free disk space, got "
            f"{free / 1e9:,.1f} GB; free some, or choose another"
        )
    return partial


def _write_shards(
    manifest: Manifest,
    metadata: Metadata,
    sizes: np.ndarray,
    partial: Path,
    conversion: Conversion,
    console: Console,
) -> list[Shard]:
    directory = manifest.directory
    records = ConvertedRecords(manifest, metadata.patch, sizes, conversion.geometry)
    done = sum(s.num_records for s in manifest.shards if (partial / s.name).exists())
    with phase(
        console, f"converting clips of {directory}", len(manifest), done=done
    ) as advance:
        return list(records.write_shards(partial, advance))


def _write_history(
    source: Path,
    out: Path,
    num_updates: int,
    shards: Sequence[Shard],
    conversion: Conversion,
) -> None:
    """Writes all that an update reads, up to the updates that the manifest covers."""
    copy_updates(source, out, num_updates)
    history = read_history(out)
    by_name = {shard.name: shard for shard in shards}
    for i in range(len(history.parts)):
        copy_scans(source, out, i)
        part = read_encoded(source, i)
        shard = by_name[part.shard.name] if part.shard else None
        write_encoded(out, i, dataclasses.replace(part, shard=shard))
    write_scan_table(out, history)
    claim = read_json(source / FINGERPRINT, remedy="restore it from a copy")
    # Updates take the recorded sizes: no plan of this version has just those sizes.
    copy_sizes(source, out, history, planned_sizes(claim))
    converted = conversion.fingerprint(claim) | {"sizes": "chosen"}
    content = json.dumps(converted, indent=1)
    write_atomically(out / FINGERPRINT, content + "\n")


def _write_manifest(
    source: Path,
    out: Path,
    metadata: Metadata,
    shards: Sequence[Shard],
    conversion: Conversion,
) -> None:
    *earlier, newest = (
        dataclasses.replace(g, fingerprint=conversion.fingerprint(g.fingerprint))
        for g in metadata.generations
    )
    write_manifest(
        out,
        _tables(source / FILE_NAME),
        shards,
        newest.fingerprint,
        earlier=earlier,
        masked=newest.masked,
        num_updates=newest.num_updates,
        patch=conversion.geometry.patch,
    )


def _tables(path: Path) -> Iterator[pa.Table]:
    """Reads the rows of a manifest in groups, as millions could fill the memory."""
    try:
        with pq.ParquetFile(path) as file:
            for i in range(file.num_row_groups):
                yield with_starts(file.read_row_group(i).replace_schema_metadata(None))
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from error
