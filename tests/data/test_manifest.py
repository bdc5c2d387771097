"""Tests of jaxload.data.manifest and jaxload.data.writer."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.balance.shape import Shape
from jaxload.data.manifest import FILE_NAME, Entry, read_manifest
from jaxload.data.writer import write_dataset
from jaxload.errors import InputError


def entries(count: int):
    for i in range(count):
        shape = Shape(1 + i % 2, 2, 2)
        yield Entry(id=f"s{i}", caption=f"sample {i}", shape=shape), bytes([i]) * 1000


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
    assert manifest.table["caption"][3].as_py() == "sample 3"
    rows = manifest.rows_by_shape()
    assert rows[Shape(2, 2, 2)].tolist() == [1, 3, 5, 7, 9]


def test_locate_names_shard_and_record(dataset: Path):
    assert (
        read_manifest(dataset).locate(9).endswith("shard-00002.array_record, record 1")
    )


def test_digest_follows_the_fingerprint(dataset: Path, tmp_path: Path):
    other = tmp_path / "other"
    write_dataset(other, entries(2), samples_per_shard=4, fingerprint={"codec": "y"})
    assert read_manifest(dataset).digest() != read_manifest(other).digest()


def test_a_failed_writer_leaves_nothing_behind(tmp_path: Path):
    def failing():
        yield from entries(3)
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        write_dataset(tmp_path / "set", failing(), samples_per_shard=2, fingerprint={})
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .*choose another data"):
        write_dataset(
            tmp_path / "file" / "set", entries(1), samples_per_shard=1, fingerprint={}
        )


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
