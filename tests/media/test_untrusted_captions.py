"""Tests of reading captions from any bytes: tables and text files."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.errors import InputError
from jaxload.media import parquet_texts
from jaxload.media.caption_tables import read_table
from jaxload.media.captions import read_text
from jaxload.media.folder import list_media
from jaxload.media.parquet_texts import read_texts
from tests.media.byte_edits import edited
from tests.media.test_caption_tables import write_rows
from tests.media.test_captions import UNICODE, write

FORMATS = ["metadata.csv", "metadata.jsonl", "metadata.parquet"]
ROWS = [
    {"file_name": "a.png", "caption": 'a "big", fat cat'},
    {"file_name": "below/b.png", "caption": "two\nlines"},
    {"file_name": "c.png", "caption": UNICODE},
    {"file_name": "d.png", "caption": ""},
]
MAX_CHARACTERS = 40

# What the readers treat specially.
MARKS = st.sampled_from(
    [
        *(
            b'"',
            b'""',
            b",",
            b"\n",
            b"\r",
            b"\0",
            b"\xff",
            b"\xef\xbb\xbf",
            b"\xe2\x80",
        ),
        *(b"[", b"{", b"}", b"\\", b"\\ud83d", b"1e999", b"NaN", b"null", b"9" * 5_000),
        *(b"../", b"/etc/passwd", b"file:///", b"http://host/", b"a/" * 3_000),
        *(b"file_name", b"caption", b"[" * 3_000, "a,b\n".encode("utf-16")),
    ]
)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Returns the content of a valid table, by its name."""
    folder = tmp_path_factory.mktemp("valid")
    return {name: write_rows(folder / name, ROWS).read_bytes() for name in FORMATS}


def check(path: Path, content: bytes) -> None:
    """Asserts that a table is read, or refused in one short line with its path."""
    write(path, content)
    try:
        rows, problems = read_table(path, path.name, MAX_CHARACTERS)
    except InputError as error:
        message = str(error)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < 1_000
        return
    for row in rows:
        assert 0 < len(row.path.encode()) < 20_000
        assert row.caption is None or len(row.caption.text) <= MAX_CHARACTERS
    for problem in problems:
        assert problem.name == path.name
        assert "\n" not in problem.detail
        assert len(problem.detail) < 500


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FORMATS)
@given(content=st.binary(max_size=200) | st.lists(MARKS, max_size=8).map(b"".join))
def test_any_bytes_are_a_table_or_one_short_line(
    tmp_path: Path, name: str, content: bytes
):
    check(tmp_path / name, content)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_an_edited_table_is_a_table_or_one_short_line(
    tmp_path: Path, name: str, valid: dict[str, bytes], data: st.DataObject
):
    check(tmp_path / name, data.draw(edited(valid[name], MARKS)))


@pytest.mark.fuzz
@given(data=st.data())
def test_a_table_names_no_file_outside_the_folder(
    tmp_path: Path, valid: dict[str, bytes], data: st.DataObject
):
    folder = tmp_path / "media"
    folder.mkdir(exist_ok=True)
    for name in ("a.png", "c.png", "../secret.png"):
        write(folder / name, b"not read")
    name = data.draw(st.sampled_from(FORMATS[:2]))
    for other in FORMATS:
        (folder / other).unlink(missing_ok=True)
    write(folder / name, data.draw(edited(valid[name], MARKS)))
    listing = list_media(folder)
    assert [file.name for file in listing.files] == ["a.png", "c.png"]
    for problem in listing.problems:
        assert not problem.bad
        assert len(problem.name) < 20_000
        assert "\n" not in problem.detail


def path_row(path: str) -> str:
    return json.dumps({"file": path, "text": "words"}) + "\n"


@pytest.mark.parametrize(
    ("path", "name", "reason"),
    [
        ("../secret.png", "../secret.png", "path leads outside the folder"),
        ("a/../../secret.png", "a/../../secret.png", "path leads outside the folder"),
        ("/etc/passwd", "/etc/passwd", "path leads outside the folder"),
        ("http://host/a.png", "http:/host/a.png", "caption with no file"),
        ("a.png\0", "a.png\0", "caption with no file"),
        ("a" * 4_097, "metadata.jsonl", "metadata row cannot be read"),
    ],
)
def test_a_path_of_no_file_is_reported(
    tmp_path: Path, path: str, name: str, reason: str
):
    folder = tmp_path / "media"
    folder.mkdir()
    for file in ("a.png", "../secret.png"):
        write(folder / file, b"not read")
    write(folder / "metadata.jsonl", path_row("a.png") + path_row(path))
    (problem,) = list_media(folder).problems
    assert (problem.name, problem.reason) == (name, reason)


def test_a_long_path_is_told_in_short(tmp_path: Path):
    content = path_row("a.png") + path_row("b" * 1_000_000)
    path = write(tmp_path / "metadata.jsonl", content)
    _, (problem,) = read_table(path, path.name)
    assert problem.detail.startswith(
        "line 2: expected a path of at most 4,096 characters, got 1,000,000: 'bbb"
    )
    assert len(problem.detail) < 150


@pytest.mark.parametrize("name", FORMATS[:2])
@pytest.mark.parametrize("part", ["[", '{"a":', '"', ",", "\0", "\n", "x", "\\"])
def test_a_large_table_of_nothing_is_refused_in_little_memory(
    tmp_path: Path, name: str, part: str
):
    path = write(tmp_path / name, "file,text\n" + part * 50_000)
    tracemalloc.start()
    try:
        check(path, path.read_bytes())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30e6


def test_a_small_parquet_file_of_long_texts_takes_little_memory(tmp_path: Path):
    """As plain strings, its texts would take 16 GB for each thousand rows."""
    indices = pa.array(np.zeros(2_000, np.int32))
    captions = pa.DictionaryArray.from_arrays(indices, ["x" * 16_000_000])
    files = pa.array([f"{i}.png" for i in range(2_000)])
    path = tmp_path / "metadata.parquet"
    pq.write_table(pa.table({"file": files, "caption": captions}), path)
    assert path.stat().st_size < 2_000_000
    del captions
    before, most, count = pa.total_allocated_bytes(), 0, 0
    with path.open("rb") as file:
        for name, caption in read_texts(file, ["file", "caption"]):
            assert name == f"{count}.png"
            assert caption is not None
            assert len(caption) == 16_000_000
            most = max(most, pa.total_allocated_bytes() - before)
            count += 1
    assert count == 2_000
    assert most < 300e6


def test_a_parquet_file_of_too_much_text_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "metadata.parquet"
    pq.write_table(pa.table({"file": ["a.png", None], "caption": ["b", "c"]}), path)
    with path.open("rb") as file:
        assert [*read_texts(file, ["caption", "file"])] == [("b", "a.png"), ("c", None)]
    monkeypatch.setattr(parquet_texts, "_MAX_GROUP_BYTES", 10)
    with pytest.raises(InputError, match=r"cannot be read \(\d+ bytes of text in one"):
        read_table(path, path.name)


@pytest.mark.fuzz
@given(content=st.binary(max_size=200) | st.lists(MARKS, max_size=4).map(b"".join))
def test_any_text_file_is_a_short_caption_or_not_utf8(tmp_path: Path, content: bytes):
    path = write(tmp_path / "a.txt", content)
    try:
        caption = read_text(path, MAX_CHARACTERS)
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            content.decode()
    else:
        assert len(caption.text) <= MAX_CHARACTERS
        assert "\n" not in caption.text
        assert caption.text == " ".join(caption.text.split())
