"""Claims an output directory for one preparation and refuses a second."""

import json
from pathlib import Path
from typing import Any

from jaxload.data.config import MAX_SOURCE_PIXELS
from jaxload.data.manifest_metadata import FILE_NAME
from jaxload.errors import InputError
from jaxload.files import read_json, written_once
from jaxload.media.part_tables import parts_directory

FINGERPRINT = "preparation.json"
"""File with the fingerprint of the preparation that a directory belongs to."""


def claim(out: Path, fingerprint: dict[str, Any]) -> None:
    """Claims a directory for a preparation and refuses one that holds another."""
    path = out / FINGERPRINT
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
        with written_once(path) as partial:
            partial.write_text(json.dumps(fingerprint, indent=1) + "\n")
    _check_same(out, fingerprint)


def _with_default(fingerprint: dict[str, Any]) -> dict[str, Any]:
    return {"max_source_pixels": MAX_SOURCE_PIXELS, **fingerprint}


def _check_same(out: Path, fingerprint: dict[str, Any]) -> None:
    found = read_json(out / FINGERPRINT, remedy="choose another --out")
    found.pop("media", None)  # Earlier versions recorded and compared the media here.
    # Recorded only if it is not the default; see `Preparation.fingerprint`.
    found, fingerprint = (_with_default(content) for content in (found, fingerprint))
    # In the order of the fingerprint: codecs come before their channels and strides.
    for name in {**found, **fingerprint}:
        then, now = found.get(name), fingerprint.get(name)
        if then != now:
            raise InputError(
                f"--out {out}: was begun with {name} {then!r}, got {now!r}; finish it "
                f"with the same {name}, or choose another --out"
            )
