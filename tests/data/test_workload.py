"""Tests of jaxload.data.workload."""

import csv
import dataclasses
import math
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.data.manifest import Entry
from jaxload.data.workload import Rows, is_prepared
from jaxload.data.workload import read_rows as read
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from tests.data.datasets import write_dataset

HEADER = "id,num_frames,height,width,fps"
NUMBERS = ("num_frames", "height", "width", "fps")


def write_text(path: Path, *lines: str, end: str = "\n", encoding="utf-8") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode(encoding))
    return path


def write_table(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def columns_of(chunks: list[Rows]) -> dict[str, list]:
    """Concatenates all chunks, and checks the invariants of each."""
    columns = {name: [] for name in (*NUMBERS, "count", "id")}
    for rows in chunks:
        assert rows.first == len(columns["count"])
        assert rows.count.dtype == np.int64
        for name in NUMBERS:
            assert getattr(rows, name).dtype == np.float64
            columns[name] += getattr(rows, name).tolist()
        columns["count"] += rows.count.tolist()
        columns["id"] += [None] * len(rows) if rows.ids is None else rows.ids.tolist()
    return columns


def contents(path: Path, **options) -> dict[str, list]:
    return columns_of(list(read(path, with_ids=True, **options)))


def same(a: dict[str, list], b: dict[str, list]) -> None:
    """Asserts equality, with NaN equal to NaN."""
    np.testing.assert_equal(a, b)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_text(
        tmp_path / "plain.csv", HEADER, "a,1,480,640,0", "b,90,720,1280,29.97"
    )


PLAIN = {
    "id": ["a", "b"],
    "num_frames": [1.0, 90.0],
    "height": [480.0, 720.0],
    "width": [640.0, 1280.0],
    "fps": [0.0, 29.97],
    "count": [1, 1],
}

cell = st.one_of(
    st.none(),
    st.integers(-9, 10**9).map(float),
    st.floats(width=32, allow_nan=False),
)
sample_id = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\r\0"),
    max_size=8,
)
tables = st.lists(st.tuples(sample_id, cell, cell, cell, cell), min_size=1, max_size=20)


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(table=tables, chunk_rows=st.integers(1, 7))
def test_formats_and_chunks_change_nothing(tmp_path_factory, table, chunk_rows):
    directory = tmp_path_factory.mktemp("formats")
    names = HEADER.split(",")
    with (directory / "m.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(table)
    columns = {name: [row[i] for row in table] for i, name in enumerate(names)}
    floats = {name: pa.array(columns[name], pa.float64()) for name in NUMBERS}
    write_table(directory / "m.parquet", id=pa.array(columns["id"]), **floats)
    parts = directory / "parts"
    parts.mkdir()
    whole = pq.read_table(directory / "m.parquet")
    pq.write_table(whole.slice(0, 3), parts / "0.parquet")
    pq.write_table(whole.slice(3), parts / "1.parquet", row_group_size=2)

    want = columns | {"count": [1] * len(table)}
    for name in NUMBERS:
        want[name] = [math.nan if v is None else v for v in columns[name]]
    for path in (directory / "m.csv", directory / "m.parquet", parts):
        chunks = list(read(path, with_ids=True, chunk_rows=chunk_rows))
        assert all(1 <= len(rows) <= chunk_rows for rows in chunks)
        same(columns_of(chunks), want)


def test_ids_are_read_only_when_asked_for(plain: Path):
    (rows,) = read(plain)
    assert rows.ids is None
    assert not rows.at_model_rate
    assert rows.width.tolist() == [640.0, 1280.0]


@pytest.mark.parametrize(
    ("end", "encoding"),
    [("\n", "utf-8"), ("\r\n", "utf-8"), ("\r", "utf-8"), ("\r\n", "utf-8-sig")],
    ids=["unix", "windows", "mac", "byte-order-mark"],
)
def test_csv_of_any_platform(tmp_path: Path, end: str, encoding: str):
    lines = (HEADER, "a,1,480,640,0", "", "b,90,720,1280,29.97", "")
    path = write_text(tmp_path / "m.CSV", *lines, end=end, encoding=encoding)
    same(contents(path), PLAIN)


def test_column_order_and_other_columns_do_not_matter(tmp_path: Path):
    path = write_text(
        tmp_path / "m.csv",
        "caption,fps,width,id,height,count,num_frames",
        '"one, two",0,640,a,480,7,1',
        '"say ""hi""\nthere",29.97,1280,b,720,8,90',
    )
    same(contents(path), PLAIN)
    by_name = {name: PLAIN[name] for name in ("fps", "width", "id", "num_frames")}
    path = write_table(
        tmp_path / "m.parquet", other=[[1], [2]], **by_name, height=[480, 720]
    )
    same(contents(path), PLAIN)


def test_quoted_and_unicode_ids(tmp_path: Path):
    path = write_text(
        tmp_path / "m.csv",
        HEADER,
        '"a, ""b""",1,2,3,0',
        '"x\ny","1","2",3,0',
        "\u732b/\u00e9.mp4,1,2,3,0",
        "NA,1,2,3,0",
    )
    got = contents(path)
    assert got["id"] == ['a, "b"', "x\ny", "\u732b/\u00e9.mp4", "NA"]
    assert got["num_frames"] == [1.0] * 4
    assert got["height"] == [2.0] * 4


def test_a_cell_that_is_no_number_is_nan(tmp_path: Path):
    cells = ["12", " 7 ", "+3", "1e3", "inf", "abc", "", "1_000", '"29,97"', "1e999"]
    path = write_text(tmp_path / "m.csv", HEADER, *(f"a,{c},1,2,0" for c in cells))
    nan, inf = math.nan, math.inf
    want = [12.0, 7.0, 3.0, 1e3, inf, nan, nan, nan, nan, inf]
    np.testing.assert_equal(contents(path)["num_frames"], want)
    np.testing.assert_equal(contents(path, chunk_rows=1)["num_frames"], want)


def test_a_csv_row_with_a_wrong_number_of_cells_is_nan(tmp_path: Path):
    path = write_text(tmp_path / "m.csv", HEADER, "a,1,2,3,0", "x,1,2", "b,9,2,3,0")
    got = contents(path)
    assert got["id"] == ["a", "", "b"]
    np.testing.assert_equal(got["num_frames"], [1.0, math.nan, 9.0])
    np.testing.assert_equal(got["fps"], [0.0, math.nan, 0.0])
    assert got["count"] == [1] * 3


@pytest.mark.parametrize(
    "data_type",
    [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(21, 2), pa.string()],
    ids=str,
)
def test_parquet_numbers_of_any_type_and_nulls(tmp_path: Path, data_type: pa.DataType):
    cells = pa.array([1, None, 90]).cast(data_type)
    encoded = pa.array(["5", None, "x"]).dictionary_encode()
    path = write_table(
        tmp_path / "m.parquet",
        id=pa.array([10, None, 12]),
        num_frames=cells,
        height=encoded,
        width=pa.nulls(3),
        fps=[0.0, math.nan, 30.0],
    )
    nan = math.nan
    want = {
        "id": ["10", "", "12"],
        "num_frames": [1.0, nan, 90.0],
        "height": [5.0, nan, nan],
        "width": [nan] * 3,
        "fps": [0.0, nan, 30.0],
        "count": [1] * 3,
    }
    same(contents(path), want)


def test_integers_beyond_float64_are_rounded(tmp_path: Path):
    sizes = {name: [2**53 + 1] for name in NUMBERS}
    path = write_table(tmp_path / "m.parquet", id=["a"], **sizes)
    assert contents(path)["height"] == [2.0**53]


def test_histograms_in_both_formats(tmp_path: Path):
    want = {
        "num_frames": [1.0, 90.0],
        "height": [480.0, 720.0],
        "width": [640.0, 1280.0],
        "fps": [math.nan] * 2,
        "count": [1000, 2_000_000],
        "id": [None] * 2,
    }
    sizes = {name: [int(v) for v in want[name]] for name in NUMBERS[:3]}
    lines = ("1,480,640,1000", "90,720,1280,2000000")
    old = write_text(tmp_path / "old.csv", "frames,height,width,count", *lines)
    new = write_text(tmp_path / "new.csv", "num_frames,height,width,count", *lines)
    parquet = write_table(tmp_path / "h.parquet", **sizes, count=want["count"])
    for path in (old, new, parquet):
        same(contents(path), want)
        assert all(rows.at_model_rate for rows in read(path))
    timed = write_table(
        tmp_path / "timed.parquet", **sizes, fps=[0, 30], count=[1000, 2_000_000]
    )
    same(contents(timed), want | {"fps": [0.0, 30.0]})
    assert not any(rows.at_model_rate for rows in read(timed))


@pytest.mark.parametrize("count", ["abc", "-1", "1.5", "", "inf", "1e17"])
def test_a_count_that_is_none_is_an_error(tmp_path: Path, count: str):
    path = write_text(
        tmp_path / "h.csv", "frames,height,width,count", "1,2,3,4", f"1,2,3,{count}"
    )
    with pytest.raises(InputError, match=r"h\.csv: row 1: expected a whole number as"):
        contents(path)


def test_rows_are_counted_through_a_directory(tmp_path: Path):
    for name in ("b", "c", "a"):
        write_table(
            tmp_path / f"{name}.parquet", id=[name], **{n: [1] for n in NUMBERS}
        )
    assert contents(tmp_path)["id"] == ["a", "b", "c"]


def test_is_prepared(tmp_path: Path, plain: Path):
    shape = Shape(1, 2, 2)
    entry = Entry(id="a", source="a", caption="a", text_tokens=1, shape=shape)
    write_dataset(tmp_path / "set", [(entry, b"x")])
    assert is_prepared(tmp_path / "set")
    assert not is_prepared(plain)
    assert not is_prepared(tmp_path / "none")
    write_table(tmp_path / "manifest.parquet", id=["a"])
    assert not is_prepared(tmp_path)
    (tmp_path / "manifest.parquet").write_bytes(b"damaged")
    assert not is_prepared(tmp_path)


def test_a_number_that_goes_on_over_a_line_break_is_an_error(tmp_path: Path):
    path = write_text(tmp_path / "m.csv", HEADER, 'a,1,2,3,"0', "b,1,2,3,0")
    message = r"column 'fps': expected a number, got .* quote that is not closed"
    with pytest.raises(InputError, match=message) as error:
        contents(path)
    assert "\n" not in str(error.value)


def test_cells_that_are_no_numbers_are_an_error(tmp_path: Path):
    sizes = {name: [True] for name in NUMBERS}
    path = write_table(tmp_path / "bool.parquet", id=["a"], **sizes)
    with pytest.raises(
        InputError, match="column 'num_frames': expected numbers, got b"
    ):
        contents(path)


@pytest.mark.parametrize("ids", [[["a"]], [b"\xff"]], ids=["list", "bytes"])
def test_ids_that_are_no_text_are_an_error(tmp_path: Path, ids: list):
    path = write_table(tmp_path / "m.parquet", id=ids, **{n: [1] for n in NUMBERS})
    with pytest.raises(InputError, match="column 'id': expected text in UTF-8, got"):
        contents(path)


def test_rows_cannot_be_changed(plain: Path):
    (rows,) = read(plain)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rows.first = 3  # pyright: ignore[reportAttributeAccessIssue]
