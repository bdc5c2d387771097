"""Tests of jaxload.data.workload_ids."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.data import workload_ids
from jaxload.data.workload_ids import IdCheck, check_ids, row_labels
from jaxload.errors import InputError

HEADER = "id,num_frames,height,width,fps"
NUMBERS = ("num_frames", "height", "width", "fps")


def write_text(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def write_table(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def write_ids(path: Path, ids: list[str | None]) -> Path:
    sizes = {name: [1] * len(ids) for name in NUMBERS}
    return write_table(path, id=pa.array(ids, pa.string()), **sizes)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_text(
        tmp_path / "plain.csv", HEADER, "a,1,480,640,0", "b,90,720,1280,29.97"
    )


def test_different_ids_pass(tmp_path: Path, plain: Path):
    ids = [f"s{i}" for i in range(2000)]
    path = write_ids(tmp_path / "m.parquet", [*ids, None, "", None])
    assert check_ids(path) == IdCheck(checked=True, num_rows=2003, num_missing=3)
    assert check_ids(plain) == IdCheck(checked=True, num_rows=2)


def test_rows_without_ids_only(tmp_path: Path):
    path = write_text(tmp_path / "m.csv", HEADER, "x", "x,1")
    assert check_ids(path) == IdCheck(checked=True, num_rows=2, num_missing=2)


def test_a_histogram_has_no_ids(tmp_path: Path):
    path = write_text(
        tmp_path / "h.csv",
        "num_frames,height,width,count",
        "1,480,640,1000",
        "90,720,1280,2000000",
    )
    assert check_ids(path) == IdCheck(checked=False, num_rows=2)
    assert row_labels(path, [1]) == ["row 1"]


def test_repeated_ids_are_named(tmp_path: Path):
    path = write_ids(tmp_path / "m.parquet", ["a", "b", "c", "b"])
    with pytest.raises(
        InputError, match=r"got repeats, 1 in all: 'b' \(rows 1 and 3\); re"
    ):
        check_ids(path)
    ids = [f"s{i}" for i in range(1500)]
    path = write_ids(tmp_path / "m.parquet", [*ids, *reversed(ids), "s0"])
    message = (
        r"got repeats, 1501 in all: 's1499' \(rows "
        r"1499 and 1500\), 's1498' \(rows 1498 and 1501\), 's1497' \(rows 1497 and "
        r"1502\), \.\.\.; remove"
    )
    with pytest.raises(InputError, match=message):
        check_ids(path)


def test_equal_hashes_are_no_proof(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(
        workload_ids,
        "_hash",
        lambda ids: np.array([len(text) for text in ids], np.int64),
    )
    path = write_ids(tmp_path / "m.parquet", ["ab", "cd", "ef", "g"])
    assert check_ids(path) == IdCheck(checked=True, num_rows=4)
    path = write_ids(tmp_path / "m.parquet", ["ab", "cd", "ef", "cd"])
    with pytest.raises(InputError, match=r"'cd' \(rows 1 and 3\); remove"):
        check_ids(path)


def test_too_many_ids_are_not_checked(tmp_path: Path, plain: Path, monkeypatch):
    monkeypatch.setattr(workload_ids, "MAX_CHECKED_IDS", 1)
    path = write_ids(tmp_path / "m.parquet", ["a", "a", "a"])
    assert check_ids(path) == IdCheck(checked=False, num_rows=3)
    assert check_ids(plain) == IdCheck(checked=False, num_rows=2)


def test_a_manifest_of_no_use_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"found none; check the path"):
        check_ids(tmp_path / "none.csv")
    path = write_ids(tmp_path / "empty.parquet", [])
    with pytest.raises(InputError, match=r"empty\.parquet: empty manifest"):
        check_ids(path)
    sizes = {name: [1] for name in NUMBERS}
    path = write_table(tmp_path / "m.parquet", id=[["a"]], **sizes)
    with pytest.raises(InputError, match="column 'id': expected text in UTF-8, got"):
        check_ids(path)


def test_rows_are_named(tmp_path: Path):
    path = write_text(tmp_path / "m.csv", HEADER, "a,1,2,3,0", "bad", '"it\'s",1,2,3,0')
    labels = row_labels(path, [2, 0, 1, 2])
    assert labels == [
        'row 2 (id "it\'s")',
        "row 0 (id 'a')",
        "row 1 (no id)",
        'row 2 (id "it\'s")',
    ]
    assert row_labels(path, []) == []


def test_rows_are_counted_through_a_directory(tmp_path: Path):
    for name in ("b", "c", "a"):
        write_ids(tmp_path / f"{name}.parquet", [name])
    assert row_labels(tmp_path, [2, 0]) == ["row 2 (id 'c')", "row 0 (id 'a')"]
