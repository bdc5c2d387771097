"""Tests of jaxload.media.captions: captions in text files, and names of files."""

from pathlib import Path

import pytest

from jaxload.media.captions import Caption, NameIndex, cut, read_text, shown

# An emoji of several code points, Hebrew with points, Chinese, a combining mark.
UNICODE = "\U0001f468\u200d\U0001f469 \u05e7\u05b6\u05dc \u732b e\u0301"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "caption"),
    [
        (b"", ""),
        (b" \r\n", ""),
        (b"a cat\n", "a cat"),
        (b"\xef\xbb\xbfa cat", "a cat"),
        (b"\n a\r\n\r\ncat\t on\xc2\xa0a  mat ", "a cat on a mat"),
        (UNICODE.encode(), UNICODE),
    ],
)
def test_a_text_file_is_one_line_of_utf8(tmp_path: Path, content: bytes, caption: str):
    assert read_text(write(tmp_path / "a.txt", content)) == Caption(caption)


@pytest.mark.parametrize("content", [b"caf\xe9", "a cat".encode("utf-16")])
def test_a_text_file_in_another_encoding_is_an_error(tmp_path: Path, content: bytes):
    with pytest.raises(UnicodeDecodeError):
        read_text(write(tmp_path / "a.txt", content))


@pytest.mark.parametrize(
    ("text", "cut_text"),
    [
        ("a cat  on a mat", "a cat on"),  # Nine characters end in the second "a".
        ("a catamaran", "a catamar"),  # One long word.
        ("a cat on x", "a cat on"),
        ("\u732b" * 10, "\u732b" * 9),  # Nothing to cut between.
    ],
)
def test_a_long_caption_is_cut_between_words(text: str, cut_text: str):
    assert cut(text, 9) == Caption(cut_text, is_cut=True)
    assert cut(text, len(text)) == Caption(" ".join(text.split()))


def test_only_the_start_of_a_long_text_is_read(tmp_path: Path):
    path = write(tmp_path / "a.txt", "a cat " * 1_000)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # More than any memory; the disk holds only the start.
    caption = read_text(path, 100)
    assert caption == Caption(" ".join(["a cat"] * 16 + ["a"]), is_cut=True)
    # A character of three bytes, the second of which would be the last to be read.
    path = write(tmp_path / "b.txt", " " * 1_598 + "\u732b" * 10)
    assert read_text(path, 100) == Caption("", is_cut=True)


def test_what_is_shown_is_one_line_of_utf8():
    assert shown("a\nb\udcff\r \u00e9") == "a\\nb\\xff\\r \u00e9"


def test_names_are_found_exactly_or_else_by_nfc():
    index = NameIndex(["\u00e9.mp4", "e\u0301.mp4", "n\u0303"])
    assert index.find("\u00e9.mp4") == ["\u00e9.mp4"]
    assert index.find("e\u0301.mp4") == ["e\u0301.mp4"]
    assert index.find("\u00f1") == ["n\u0303"]
    assert index.find("n") == []
