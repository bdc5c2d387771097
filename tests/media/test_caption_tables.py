"""Tests of jaxload.media.caption_tables: captions in CSV, JSON lines and Parquet."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxload.errors import InputError
from jaxload.media.caption_tables import (
    CAPTION_COLUMNS,
    FILE_COLUMNS,
    read_table,
)
from jaxload.media.captions import Caption, clean
from tests.media.test_captions import UNICODE, write


def write_rows(path: Path, rows: list[dict]) -> Path:
    """Writes rows in the format of the path's suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    if path.suffix == ".jsonl":
        return write(
            path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
    cells = [[*rows[0]], *([*row.values()] for row in rows)]
    quoted = [[f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in r] for r in cells]
    return write(path, "".join(",".join(row) + "\n" for row in quoted))


def rows_of(path: Path) -> list[tuple]:
    rows, problems = read_table(path, path.name)
    assert problems == []
    assert not any(row.caption and row.caption.is_cut for row in rows)
    return [(row.number, row.path, row.caption and row.caption.text) for row in rows]


def bad_rows_of(path: Path) -> list[str]:
    _, problems = read_table(path, "the name")
    assert {(p.name, p.reason, p.bad) for p in problems} == {
        ("the name", "metadata row cannot be read", False)
    }
    return [problem.detail for problem in problems]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("caption_column", CAPTION_COLUMNS)
@pytest.mark.parametrize("file_column", FILE_COLUMNS)
def test_columns_go_by_several_names(
    tmp_path: Path, suffix: str, file_column: str, caption_column: str
):
    row = {"id": "7", caption_column: "x", file_column: "a.mp4", "z": "y"}
    assert rows_of(write_rows(tmp_path / f"m{suffix}", [row]))[0][1:] == ("a.mp4", "x")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_first_of_several_columns_is_used(tmp_path: Path, suffix: str):
    names = [*reversed(FILE_COLUMNS), *reversed(CAPTION_COLUMNS)]
    path = write_rows(tmp_path / f"m{suffix}", [{name: f"<{name}>" for name in names}])
    assert rows_of(path)[0][1:] == ("<file_name>", "<caption>")


@pytest.mark.parametrize("suffix", [".csv", ".CSV", ".jsonl", ".parquet"])
def test_captions_may_hold_anything(tmp_path: Path, suffix: str):
    texts = ['a "big", fat cat', "two\nlines", UNICODE, "'", "a\u2028b", "\\n", "x\0y"]
    rows = [{"file": f"{text}.mp4", "text": text} for text in texts]
    got = rows_of(write_rows(tmp_path / f"m{suffix}", rows))
    assert [row[1:] for row in got] == [(f"{text}.mp4", clean(text)) for text in texts]


def test_rows_are_numbered_by_their_first_line(tmp_path: Path):
    text = '\ufeff file , text \r\na,"1\r\n2\r\n3"\r\n\r\nb,4\r\nc,5'
    path = write(tmp_path / "m.csv", text)
    assert rows_of(path) == [(2, "a", "1 2 3"), (6, "b", "4"), (7, "c", "5")]
    path = write(tmp_path / "m.csv", "file,text\ra,1\rb,2\r")
    assert rows_of(path) == [(2, "a", "1"), (3, "b", "2")]
    path = write(tmp_path / "m.jsonl", '\n{"file": "a", "text": "1"}\r\n \n')
    assert rows_of(path) == [(2, "a", "1")]
    path = write_rows(tmp_path / "m.parquet", [{"file": "a", "text": "1"}])
    assert rows_of(path) == [(1, "a", "1")]


def test_no_caption_is_none_and_an_empty_one_is_empty(tmp_path: Path):
    rows = [{"file": "a", "text": None}, {"file": "b", "text": " "}]
    for suffix in (".jsonl", ".parquet"):
        got = rows_of(write_rows(tmp_path / f"m{suffix}", rows))
        assert [row[1:] for row in got] == [("a", None), ("b", "")]
    got = rows_of(write(tmp_path / "m.csv", "file,text\na,\nb, \n"))
    assert [row[1:] for row in got] == [("a", None), ("b", None)]


def test_files_without_rows_are_fine(tmp_path: Path):
    assert rows_of(write(tmp_path / "m.csv", "file,text\n")) == []
    assert rows_of(write(tmp_path / "m.jsonl", "")) == []
    texts = pa.array([], pa.string())
    pq.write_table(pa.table({"file": texts, "text": texts}), tmp_path / "m.parquet")
    assert rows_of(tmp_path / "m.parquet") == []


@pytest.mark.parametrize("type_name", ["large_string", "string_view", "dictionary"])
def test_parquet_may_hold_text_in_any_form(tmp_path: Path, type_name: str):
    texts = pa.array(["a", "b", "a"])
    if type_name == "dictionary":
        texts = texts.dictionary_encode()
    else:
        texts = texts.cast(getattr(pa, type_name)())
    pq.write_table(pa.table({"file": texts, "text": texts}), tmp_path / "m.parquet")
    assert rows_of(tmp_path / "m.parquet")[2] == (3, "a", "a")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_long_captions_are_cut(tmp_path: Path, suffix: str):
    """By default, the CSV module refuses cells of more than 131,072 characters."""
    rows = [{"file": name, "text": "a cat " * 200_000} for name in "ab"]
    path = write_rows(tmp_path / f"m{suffix}", rows)
    found, problems = read_table(path, path.name, max_characters=7)
    assert problems == []
    assert [row.caption for row in found] == [Caption("a cat a", is_cut=True)] * 2


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl"])
def test_a_table_of_one_long_line_is_an_error(tmp_path: Path, name: str):
    path = write(tmp_path / name, "file,text\n\n" + "x" * (1 << 22))
    message = r"line 3: expected lines of less than 4,194,304 characters, got a longer"
    with pytest.raises(InputError, match=message):
        read_table(path, name)


def test_columns_with_long_names_give_a_short_message(tmp_path: Path):
    path = write(tmp_path / "m.csv", ",".join(["x" * 10_000] * 20) + "\n")
    with pytest.raises(InputError, match="expected one column with the file") as error:
        read_table(path, "m.csv")
    assert len(str(error.value)) < 600


def test_bad_rows_of_a_csv_are_told(tmp_path: Path):
    lines = ["file,text", "a,b,c", "good,x", "a", '"a"b,c', ",x", "good,y", 'a,"b']
    path = write(tmp_path / "m.csv", "\n".join(lines))
    assert [row.path for row in read_table(path, "")[0]] == ["good", "good"]
    assert bad_rows_of(path) == [
        "line 2: expected 2 cells, got 3",
        "line 4: expected 2 cells, got 1",
        "line 5: ',' expected after '\"'",
        "line 6: expected the path of a file, got ''",
        "line 8: unexpected end of data",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"file": "a", "text": "b"',
            "line 2: expected a JSON object, got invalid JSON",
        ),
        ("[" * 100_000, "line 2: expected a JSON object, got invalid JSON"),
        ('["a", "b"]', "line 2: expected a JSON object, got '"),
        ('{"file": "a"}', r"line 2: expected caption or text or prompt, got \['file'"),
        ('{"text": "a"}', "line 2: expected file_name or file or path or video or im"),
        ('{"file": 3, "text": "a"}', "line 2: expected the path of a file, got '3'"),
        ('{"file": "a", "text": ["b"]}', "line 2: expected text .*, got a list"),
        (r'{"file": "a", "text": "\ud83d"}', "line 2: .*half of a surrogate pair"),
    ],
)
def test_bad_rows_of_json_are_told(tmp_path: Path, line: str, message: str):
    good = '{"image": "a", "prompt": "b"}\n'
    path = write(tmp_path / "m.jsonl", good + line + "\n" + good)
    assert [row.number for row in read_table(path, "")[0]] == [1, 3]
    with pytest.raises(InputError, match=message):
        raise InputError("".join(bad_rows_of(path)))
    with pytest.raises(InputError, match=r"m\.jsonl: no row can be read; line"):
        read_table(write(path, line), "")


def test_a_bad_row_of_parquet_is_told(tmp_path: Path):
    rows = [{"file": "a", "text": "b"}, {"file": None, "text": "b"}]
    path = write_rows(tmp_path / "m.parquet", rows)
    assert bad_rows_of(path) == ["row 2: expected the path of a file, got 'None'"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.xls", b"", r"m\.xls: expected captions in a \.csv, .*, got '\.xls'; conv"),
        ("m.csv", b"", r"expected one column with the file, .*got the columns \[\]"),
        (
            "m.csv",
            b"name;text\na;b\n",
            r"the file, called file_name or .*, got the columns \['name;text'\]; ren",
        ),
        ("m.csv", b"file,x\n", r"the caption, called caption or .* \['file', 'x'\]"),
        ("m.csv", b"file,text,file\n", r"one column with the file"),
        ("m.csv", b"file,text\na,b\nb,caf\xe9\n", r"m\.csv, line 3: .*UTF-8, .*0xe9"),
        ("m.csv", "file,text\n".encode("utf-16"), r"line 1: expected UTF-8"),
        ("m.csv", b'file,text\na,"b\nc,d\ne,f\n', r"line 2: .* to line 4 .*a quote"),
        ("m.csv", b'file,text\na,"b\nc,"d"\ne,f\n', r"line 2: .* to line 3 .*a quote"),
        ("m.csv", b'file,text\na,b\nc,"d\ne",f\n', r"line 3: .* to line 4 .*a quote"),
        ("m.jsonl", b'{"file": "\xff", "text": "b"}', r"m\.jsonl, line 1: .*UTF-8"),
        ("m.jsonl", b"[\n{}\n]\n", r"no row can be read; line 1: expected a JSON obj"),
        ("m.parquet", b"", r"m\.parquet: expected a Parquet file, got one that cannot"),
        ("m.parquet", b"PAR1" * 9, r"m\.parquet: expected a Parquet file, got one"),
    ],
)
def test_a_file_of_no_use_is_an_error(
    tmp_path: Path, name: str, content: bytes, message: str
):
    with pytest.raises(InputError, match=message) as error:
        read_table(write(tmp_path / name, content), name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["m.csv", "m.jsonl", "m.parquet"])
def test_a_missing_file_is_an_error(tmp_path: Path, name: str):
    with pytest.raises(InputError, match="No such file or directory"):
        read_table(tmp_path / name, name)


def test_parquet_of_no_use_is_an_error(tmp_path: Path):
    path = tmp_path / "m.parquet"
    pq.write_table(pa.table({"file": ["a"], "text": [3]}), path)
    with pytest.raises(InputError, match="text in the column 'text', got int64; write"):
        read_table(path, "")
    pq.write_table(pa.table({"image": [{"bytes": b""}], "text": ["a"]}), path)
    with pytest.raises(InputError, match="text in the column 'image', got struct"):
        read_table(path, "")
    texts = pa.array([b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"file": texts, "text": ["a"]}), path)
    with pytest.raises(InputError, match=r"cannot be read .*utf-8"):
        read_table(path, "")
