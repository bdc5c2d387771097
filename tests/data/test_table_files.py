"""Tests of jaxload.data.table_files: accepted formats, and their content."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.data import table_files
from jaxload.data.table_files import read_batches, stated_num_rows
from jaxload.errors import InputError

HEADER = "id,num_frames,height,width,fps"
NUMBERS = ("num_frames", "height", "width", "fps")


def write_text(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def write_table(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def contents(path: Path, chunk_rows: int = 1_000) -> dict[str, list]:
    """Concatenates all batches; CSV values remain text."""
    columns = {name: [] for name in ("id", *NUMBERS)}
    for file, first, batch in read_batches(path, {*columns}, chunk_rows):
        assert file.parent in (path, path.parent)
        assert first == len(columns["id"])
        for name in columns:
            columns[name] += batch[name].to_pylist()
    return columns


def test_a_quoted_line_break_may_lie_anywhere(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(table_files, "_CSV_BLOCK_BYTES", 60)
    ids = [f"{i}\n{'x' * i}\n,y" for i in range(20)]
    lines = [f'"{text}",{i},2,3,0' for i, text in enumerate(ids)]
    got = contents(write_text(tmp_path / "m.csv", HEADER, *lines))
    assert got["id"] == ids
    assert got["num_frames"] == [str(i) for i in range(20)]


@pytest.mark.parametrize("block_bytes", [40, 1 << 24])
@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
def test_csv_rows_with_a_wrong_number_of_cells_are_null_in_their_place(
    tmp_path: Path, monkeypatch, block_bytes: int, chunk_rows: int
):
    monkeypatch.setattr(table_files, "_CSV_BLOCK_BYTES", block_bytes)
    good = [f"s{i},{i},2,3,0" for i in range(12)]
    bad = {0: "x", 3: "x,1,2", 4: "x,1,2,3,4,5", 9: "x,,,", 10: "x", 11: "x"}
    lines = [bad.get(i, line) for i, line in enumerate(good)]
    got = contents(
        write_text(tmp_path / "m.csv", HEADER, *lines, ""), chunk_rows=chunk_rows
    )
    for i in range(12):
        assert got["id"][i] == (None if i in bad else f"s{i}")
        assert got["num_frames"][i] == (None if i in bad else str(i))
        assert got["fps"][i] == (None if i in bad else "0")


def test_a_csv_of_bad_rows_only_is_all_null(tmp_path: Path):
    got = contents(write_text(tmp_path / "m.csv", HEADER, "a", "b", "c"))
    assert got["height"] == [None] * 3


def test_too_many_bad_rows_in_a_stretch_stop_the_file(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(table_files, "_MAX_WAITING_BAD_ROWS", 2)
    path = write_text(tmp_path / "m.csv", HEADER, *["a,1,2,3,4,"] * 3)
    with pytest.raises(InputError, match="Expected 5 columns, got 6"):
        contents(path)


def test_a_directory_is_read_in_the_order_of_names(tmp_path: Path):
    sizes = {name: [1] for name in NUMBERS}
    for name in ("b", "c", "a", ".hidden", "_metadata"):
        write_table(tmp_path / f"{name}.parquet", id=[name], **sizes)
    (tmp_path / "README.txt").write_text("not a manifest")
    assert contents(tmp_path)["id"] == ["a", "b", "c"]
    assert stated_num_rows(tmp_path) == 3


def test_files_of_a_directory_must_be_alike(tmp_path: Path):
    sizes = {name: [1] for name in NUMBERS}
    write_table(tmp_path / "a.parquet", id=["a"], **sizes)
    write_table(tmp_path / "b.parquet", count=[1], **sizes)
    with pytest.raises(InputError, match=r"b\.parquet: expected the columns \['id'"):
        contents(tmp_path)


def test_a_csv_does_not_state_its_rows(tmp_path: Path):
    path = write_text(tmp_path / "m.csv", HEADER, "a,1,2,3,0")
    assert stated_num_rows(path) == 0


def damaged(path: Path) -> Path:
    """Writes a Parquet file with a valid footer and corrupt pages."""
    write_table(path, id=["a"] * 999, **{name: range(999) for name in NUMBERS})
    content = bytearray(path.read_bytes())
    content[4:3000] = bytes(2996)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.json", b"{}", r"m\.json: expected a \.csv or .*, got '\.json'; convert"),
        ("m", b"", r"got ''; convert the file"),
        ("m.csv", b"", r"m\.csv: empty manifest: expected at least one row"),
        ("m.csv", b"\n\n", r"m\.csv: empty manifest"),
        ("m.csv", HEADER.encode(), r"m\.csv: empty manifest"),
        ("m.csv", HEADER.encode() + b"\n", r"m\.csv: empty manifest"),
        (
            "m.csv",
            b"id,num_frames,heigth,width,fps\na,1,2,3,0\n",
            r"expected one column 'height', got 0 among \['id', 'num_frames', "
            r"'heigth', 'width', 'fps'\]; did you mean 'heigth'\?",
        ),
        (
            "m.csv",
            b"num_frames,height,width,fps\n1,2,3,0\n",
            r"expected one column 'id', got 0 .* a histogram has no id but count",
        ),
        (
            "m.csv",
            HEADER.encode() + b",fps\na,1,2,3,0,1\n",
            r"expected one column 'fps', got 2 among",
        ),
        (
            "m.csv",
            HEADER.encode() + b"\n\xff,1,2,3,0\n",
            r"expected CSV in UTF-8.*UTF8",
        ),
        ("m.csv", f"{HEADER}\na,1,2,3,0\n".encode("utf-16"), r"m\.csv: expected"),
        (
            "m.csv",
            HEADER.encode() + b'\n"a,1,2,3,0\nb,1,2,3,0\n',
            r"look for a quote that is not closed",
        ),
        ("m.parquet", b"", r"m\.parquet: not a Parquet file, or damaged"),
        ("m.parquet", b"PAR1" * 9, r"m\.parquet: not a Parquet file, or damaged"),
    ],
)
def test_a_file_of_no_use_is_an_error(
    tmp_path: Path, name: str, content: bytes, message: str
):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        contents(path)
    assert "\n" not in str(error.value)


def test_a_path_of_no_use_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match=r"none\.csv: .*, found none; check the path"):
        contents(tmp_path / "none.csv")
    with pytest.raises(InputError, match="got a directory without any; check the path"):
        contents(tmp_path)


def test_parquet_of_no_use_is_an_error(tmp_path: Path):
    sizes = {name: pa.array([], pa.int32()) for name in NUMBERS}
    path = write_table(tmp_path / "empty.parquet", id=pa.array([], "string"), **sizes)
    with pytest.raises(InputError, match=r"empty\.parquet: empty manifest"):
        contents(path)
    path = damaged(tmp_path / "pages.parquet")
    with pytest.raises(InputError, match=r"pages\.parquet: not a Parquet file, or dam"):
        contents(path)
