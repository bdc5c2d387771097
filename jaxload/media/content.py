"""Identifies the content of files."""

import hashlib
from pathlib import Path

_CHARACTERS = 32


def content_digest(path: Path) -> str:
    """Returns 32 characters that identify the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_CHARACTERS]
