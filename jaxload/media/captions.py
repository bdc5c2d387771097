"""Reads captions from text files, cuts them, and finds files by name."""

import codecs
import os
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from jaxload.codecs.text_encoder import MAX_CHARACTERS

# Bytes to read of a caption file for each character: UTF-8 needs up to 4, and `clean`
# removes white space.
_BYTES_PER_CHARACTER = 16


class Caption(NamedTuple):
    """Caption of a file, clean and not longer than the limit."""

    text: str
    is_cut: bool = False
    """True if the caption was longer than the limit."""


def clean(text: str) -> str:
    """Strips a caption and collapses each run of white space into one space.

    Line breaks count as white space, because editors wrap captions anywhere.
    """
    return " ".join(text.split())


def cut(text: str, max_characters: int) -> Caption:
    """Cleans a caption and cuts it, between words if there are any."""
    text = clean(text)
    if len(text) <= max_characters:
        return Caption(text)
    words, _, rest = text[: max_characters + 1].rpartition(" ")
    # Chinese and Japanese have no spaces: there, the last "word" is most of the text.
    is_word = len(rest) < max_characters // 2
    return Caption(words if is_word else text[:max_characters], is_cut=True)


def as_utf8(path: str | Path) -> str:
    """Returns a path as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def shown(path: str | Path) -> str:
    """Returns a path as text on one line, for messages."""
    return as_utf8(path).replace("\n", "\\n").replace("\r", "\\r")


class NameIndex:
    """Finds names by a key, which the function `key` derives from a name.

    Keys are compared exactly first, then in Unicode's NFC form: macOS writes file names
    in NFD, while tables of captions are mostly typed in NFC.
    """

    def __init__(self, names: Iterable[str], key: Callable[[str], str] = str):
        self._exact: dict[str, list[str]] = {}
        self.by_nfc: dict[str, list[str]] = {}
        for name in sorted(names):
            self._exact.setdefault(key(name), []).append(name)
            self.by_nfc.setdefault(_nfc(key(name)), []).append(name)

    def find(self, key: str) -> list[str]:
        """Returns the names that have this key, sorted."""
        return self._exact.get(key) or self.by_nfc.get(_nfc(key), [])


def read_text(path: Path, max_characters: int = MAX_CHARACTERS) -> Caption:
    """Returns the caption in a text file; an empty file means an empty caption.

    A byte order mark is not part of the caption. Only the beginning of a long file is
    read. Raises OSError, or UnicodeDecodeError if the file is not UTF-8.
    """
    limit = _BYTES_PER_CHARACTER * max_characters
    with path.open("rb") as file:
        content = file.read(limit + 1)
    is_long = len(content) > limit
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    text, is_cut = cut(decoder.decode(content[:limit], not is_long), max_characters)
    return Caption(text, is_cut or is_long)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)
