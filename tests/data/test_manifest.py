"""Tests of jaxload.data.manifest."""

import dataclasses
import itertools
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.data.manifest import (
    Entry,
    Manifest,
    entry_table,
    read_manifest,
    write_manifest,
)
from jaxload.data.manifest_metadata import (
    FILE_NAME,
    METADATA_KEY,
    read_generations,
    read_metadata,
)
from jaxload.data.shard import Shard
from jaxload.errors import InputError
from jaxload.shapes.geometry import DEFAULT, Geometry
from jaxload.shapes.shape import Shape
from tests.data.datasets import write_dataset

PATCH = (1, 2, 2)


def entry_of(shape: Shape, number: int = 0) -> Entry:
    return Entry(
        id=f"s{number}",
        source=f"{number}.mp4",
        caption=f"sample {number}",
        text_tokens=number,
        shape=shape,
    )


def entries(count: int):
    for i in range(count):
        yield entry_of(Shape(1 + i % 2, 2, 2), i), bytes([i]) * 1000


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "set"
    write_dataset(path, entries(10), samples_per_shard=4, fingerprint={"codec": "x"})
    return path


def test_round_trip(dataset: Path):
    manifest = read_manifest(dataset)
    assert len(manifest) == 10
    assert [shard.num_records for shard in manifest.shards] == [4, 4, 2]
    assert manifest.fingerprint == {"codec": "x"}
    assert manifest.read_column("caption")[3].as_py() == "sample 3"
    assert manifest.read_column("text_tokens").to_pylist() == list(range(10))
    rows = manifest.rows_by_shape
    assert list(rows) == [Shape(1, 2, 2), Shape(2, 2, 2)]
    assert rows[Shape(2, 2, 2)].tolist() == [1, 3, 5, 7, 9]


def test_a_copy_for_another_process_reads_its_rows_there(dataset: Path):
    manifest = read_manifest(dataset)
    size = len(pickle.dumps(manifest))
    rows = manifest.rows_by_shape
    assert len(pickle.dumps(manifest)) == size
    copy = pickle.loads(pickle.dumps(manifest))
    np.testing.assert_equal(copy.rows_by_shape, rows)
    assert copy.digest() == manifest.digest()


def test_rows_by_shape_of_more_shapes_than_16_bits_count(tmp_path: Path):
    sizes = itertools.product((1, 2), range(2, 400, 2), range(2, 360, 2))
    shapes = list(itertools.starmap(Shape, sizes))
    assert len(shapes) > 1 << 16
    tables = [
        entry_table([entry_of(shape, first + i) for i, shape in enumerate(shapes)])
        for first in (0, len(shapes))
    ]
    write_manifest(tmp_path, tables, [], {})
    shard = Shard(name="", num_records=2 * len(shapes), num_bytes=0, digest="")
    rows = Manifest(directory=tmp_path, shards=(shard,), fingerprint={}).rows_by_shape
    assert list(rows) == shapes
    assert all(rows[s].tolist() == [i, i + len(shapes)] for i, s in enumerate(shapes))


def test_locate_names_shard_and_record(dataset: Path):
    assert (
        read_manifest(dataset).locate(9).endswith("shard-00002.array_record, record 1")
    )


def test_digest_follows_the_fingerprint_and_the_records(dataset: Path, tmp_path: Path):
    def digest_of(name: str, samples, codec: str) -> str:
        path = tmp_path / name
        fingerprint = {"codec": codec}
        write_dataset(path, samples, samples_per_shard=4, fingerprint=fingerprint)
        return read_manifest(path).digest()

    first = read_manifest(dataset).digest()
    assert digest_of("same", entries(10), "x") == first
    assert digest_of("codec", entries(10), "y") != first
    changed = ((entry, record[::-1] + b"!") for entry, record in entries(10))
    assert digest_of("records", changed, "x") != first


def test_two_samples_of_one_id_are_refused(tmp_path: Path):
    clip, file = entry_of(Shape(1, 2, 2)), entry_of(Shape(1, 2, 2), 1)
    clip = dataclasses.replace(clip, id="a@0", source="a")
    file = dataclasses.replace(file, id="a@0", source="a@0")
    tables = [entry_table([clip]), entry_table([entry_of(Shape(1, 2, 2), 2), file])]
    message = r"media files 'a' and 'a@0': both have a sample with the id 'a@0', .*; r"
    with pytest.raises(InputError, match=message) as error:
        write_manifest(tmp_path, tables, [], {})
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    write_manifest(tmp_path, tables, [], {}, masked=((0, 1),))


def test_equal_hashes_are_not_equal_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("builtins.hash", lambda _: 0)
    entries = [entry_of(Shape(1, 2, 2), i) for i in range(3)]
    write_manifest(tmp_path, [entry_table(entries)], [], {})


# --- Generations ---


@pytest.fixture
def extended(dataset: Path) -> tuple[Path, str]:
    """Extends a dataset of two shards by one, and masks rows; returns its old digest.

    The old rows keep their places, as they do when files are added to media.
    """
    table = pq.read_table(dataset / FILE_NAME).replace_schema_metadata(None)
    _, shards = read_generations(dataset, PATCH)
    write_manifest(dataset, [table.slice(0, 8)], shards[:2], {"media": "8 files"})
    digest = read_manifest(dataset).digest()
    extend(dataset, table, shards, "9 files", ((1, 2), (4, 6)))
    return dataset, digest


def extend(path: Path, table: pa.Table, shards, media: str, masked=()) -> None:
    earlier, _ = read_generations(path, PATCH)
    write_manifest(
        path, [table], shards, {"media": media}, earlier=earlier, masked=masked
    )


def test_a_new_run_opens_the_newest_generation_without_masked_rows(extended):
    path, before = extended
    manifest = read_manifest(path)
    assert manifest.digest() != before
    assert manifest.fingerprint == {"media": "9 files"}
    rows = manifest.rows_by_shape
    assert rows[Shape(1, 2, 2)].tolist() == [0, 2, 6, 8]
    assert rows[Shape(2, 2, 2)].tolist() == [3, 7, 9]
    assert rows[Shape(1, 2, 2)].dtype == np.int32
    assert manifest.used_rows.tolist() == [0, 2, 3, 6, 7, 8, 9]
    copy = pickle.loads(pickle.dumps(manifest))
    np.testing.assert_equal(copy.rows_by_shape, rows)
    assert copy.digest() == manifest.digest()


def test_a_generation_is_opened_by_its_digest(extended):
    path, before = extended
    (path / "shard-00002.array_record").unlink()  # It belongs to the second alone.
    manifest = read_manifest(path, digest=before)
    assert manifest.digest() == before
    assert manifest.fingerprint == {"media": "8 files"}
    assert len(manifest) == 8
    assert manifest.read_column("text_tokens").to_pylist() == list(range(8))
    assert manifest.rows_by_shape[Shape(1, 2, 2)].tolist() == [0, 2, 4, 6]
    with pytest.raises(InputError, match=r"shard-00002.* does not exist"):
        read_manifest(path, digest="of another dataset")


def test_a_generation_that_changes_nothing_is_not_added(extended):
    path, _ = extended
    digest = read_manifest(path).digest()
    table = pq.read_table(path / FILE_NAME).replace_schema_metadata(None)
    _, shards = read_generations(path, PATCH)
    extend(path, table, shards, "9 files")
    assert len(read_generations(path, PATCH)[0]) == 2
    assert read_manifest(path).digest() == digest
    extend(path, table, shards, "9 files", ((0, 1),))
    assert len(read_generations(path, PATCH)[0]) == 3
    assert read_manifest(path).digest() != digest


def write_older(dataset: Path, version: int) -> None:
    """Rewrites a manifest in an older format, whose records hold latents."""
    table = pq.read_table(dataset / FILE_NAME)
    content = json.loads(table.schema.metadata[METADATA_KEY]) | {"format": version}
    del content["patch"]
    if version == 2:
        content["fingerprint"] = content.pop("generations")[-1]["fingerprint"]
        table = table.drop_columns(["start"])
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(content).encode()})
    pq.write_table(table, dataset / FILE_NAME)


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_format_is_refused_and_its_metadata_can_be_read(
    dataset: Path, version: int
):
    expected = read_metadata(dataset)
    assert expected is not None
    assert expected.patch == PATCH
    write_older(dataset, version)
    assert read_metadata(dataset) == expected._replace(patch=None)
    assert_names_conversion(dataset, DEFAULT, "1x2x2, got latents")


def test_another_patch_is_refused(dataset: Path):
    other = Geometry(patch=(1, 1, 2))
    assert_names_conversion(dataset, other, "1x1x2, got tokens of patch 1x2x2")


def assert_names_conversion(path: Path, geometry: Geometry, difference: str) -> None:
    command = f"python -m jaxload.prepare --convert {path} --out NEW_DATASET"
    message = rf"{path}: expected records of tokens of patch {difference};.*: {command}"
    with pytest.raises(InputError, match=message) as error:
        read_manifest(path, geometry)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("patch", [[1, 2], [1, 2, 2, 2], [1, 0, 2], [1, 2.0, 2], 4, ""])
def test_a_patch_that_is_none_is_damage(dataset: Path, patch):
    table = pq.read_table(dataset / FILE_NAME)
    content = json.loads(table.schema.metadata[METADATA_KEY]) | {"patch": patch}
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(content).encode()})
    pq.write_table(table, dataset / FILE_NAME)
    with pytest.raises(InputError, match="not a manifest of jaxload"):
        read_manifest(dataset)


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), (False, False), (None, False), (1, False)]
)
def test_clips_may_be_cut_if_the_codec_is_causal(dataset: Path, value, expected: bool):
    assert not read_manifest(dataset).may_cut
    manifest = Manifest(directory=dataset, shards=(), fingerprint={"is_causal": value})
    assert manifest.may_cut is expected


# --- Damage ---


def truncate_shard(path: Path) -> None:
    shard = path / "shard-00001.array_record"
    shard.write_bytes(shard.read_bytes()[:-100])


def lengthen_shard(path: Path) -> None:
    with (path / "shard-00001.array_record").open("ab") as shard:
        shard.write(b"more")


def swap_shards(path: Path) -> None:
    first, second = path / "shard-00000.array_record", path / "shard-00001.array_record"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def zero_shard(path: Path) -> None:
    shard = path / "shard-00001.array_record"
    shard.write_bytes(bytes(shard.stat().st_size))


def flip_last_byte_but_some(path: Path) -> None:
    shard = path / "shard-00001.array_record"
    content = bytearray(shard.read_bytes())
    assert len(content) >= 2 * 65_536
    content[-2_000] ^= 1
    shard.write_bytes(content)


def remove_column(path: Path) -> None:
    table = pq.read_table(path / FILE_NAME)
    pq.write_table(table.drop_columns(["frames"]), path / FILE_NAME)


def remove_shard(path: Path) -> None:
    (path / "shard-00001.array_record").unlink()


def remove_row(path: Path) -> None:
    table = pq.read_table(path / FILE_NAME)
    pq.write_table(table.slice(0, 9), path / FILE_NAME)


def remove_metadata(path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"]}), path / FILE_NAME)


def garble_manifest(path: Path) -> None:
    (path / FILE_NAME).write_bytes(b"not parquet")


def remove_manifest(path: Path) -> None:
    (path / FILE_NAME).unlink()


def remove_everything(path: Path) -> None:
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate_shard, r"shard-00001.*expected \d+ bytes.*the shard is truncated"),
        (lengthen_shard, r"shard-00001.*expected \d+ bytes.*another file"),
        (swap_shards, r"shard-00000.*expected digest \w+.*another file, or damaged"),
        (zero_shard, r"shard-00001.*expected digest \w+.*another file, or damaged"),
        (flip_last_byte_but_some, r"shard-00001.*expected digest \w+"),
        (remove_column, r"not a manifest of jaxload"),
        (remove_shard, r"shard-00001.*does not exist; copy the shard again"),
        (remove_row, r"9 rows for 10 records"),
        (remove_metadata, r"not a manifest of jaxload"),
        (garble_manifest, r"not a manifest of jaxload"),
        (remove_manifest, r"expected manifest.parquet in it, found none"),
        (remove_everything, r"expected manifest.parquet in it, found none"),
    ],
)
def test_damage_is_named(dataset: Path, damage, message):
    damage(dataset)
    with pytest.raises(InputError, match=message):
        read_manifest(dataset)
