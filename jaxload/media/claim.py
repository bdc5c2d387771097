"""Claims an output directory for one preparation and refuses a second."""

import json
import os
from pathlib import Path
from typing import Any

from jaxload.data.manifest import FILE_NAME
from jaxload.errors import InputError
from jaxload.files import read_json
from jaxload.media.listing import Listing, difference
from jaxload.media.part_tables import parts_directory, read_listing, write_listing

_FINGERPRINT = "preparation.json"


def claim(out: Path, fingerprint: dict[str, Any], listing: Listing) -> None:
    """Claims a directory for a preparation and refuses one that holds another."""
    path = out / _FINGERPRINT
    if (out / FILE_NAME).exists() and not path.exists():
        raise InputError(
            f"--out {out}: holds a dataset that was not prepared from media; choose "
            "another --out"
        )
    try:
        parts_directory(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {out}: cannot be written ({error.strerror}); choose another"
        ) from error
    if not path.exists():
        _write_first(path, json.dumps(fingerprint, indent=1) + "\n")
    _check_same(out, fingerprint, listing)
    write_listing(out, listing)


def _write_first(path: Path, text: str) -> None:
    """Writes a file atomically, unless another process was faster."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    try:
        os.link(partial, path)  # Atomic: fails if the path exists.
    except FileExistsError:
        pass  # The caller compares the existing file.
    finally:
        partial.unlink()


def _check_same(out: Path, fingerprint: dict[str, Any], listing: Listing) -> None:
    found = read_json(out / _FINGERPRINT, remedy="choose another --out")
    # In the order of the fingerprint: codecs come before their channels and strides.
    for name in {**found, **fingerprint}:
        then, now = found.get(name), fingerprint.get(name)
        if then == now:
            continue
        if name == "media":
            raise InputError(
                f"--out {out}: was begun with other media: "
                f"{difference(read_listing(out), listing)}; use the media it was begun "
                "with, or choose another --out"
            )
        raise InputError(
            f"--out {out}: was begun with {name} {then!r}, got {now!r}; finish it with "
            f"the same {name}, or choose another --out"
        )
