"""Files that are there whole or not at all."""

import os
from pathlib import Path

from jaxload.errors import InputError


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file's content; a reader sees the old or the new, never a part."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from error
