"""Files that are there whole or not at all."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from jaxload.errors import InputError


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Replaces a file's content; a reader sees the old or the new, never a part."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w") as file:
            file.writelines([text] if isinstance(text, str) else text)
        os.replace(partial, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from error


def check_writable(path: Path) -> None:
    """Refuses a file that could not be written, before there is anything to write."""
    if path.is_dir():
        raise InputError(f"{path}: expected a file to write, got a directory")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from error
