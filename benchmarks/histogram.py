"""Counts the clips of a manifest: `python -m benchmarks.histogram MANIFEST OUT.csv`.

The histogram has all that a plan depends on, and no row of the dataset: frames of the
cut clips at the model's frame rate, sizes rounded down to 8 pixels, and counts.
"""

import sys
from pathlib import Path

import numpy as np
from rich.console import Console

from jaxload.planning.survey import survey_manifest
from jaxload.shapes.clips import ShapeRules

_STEP = 8


def main() -> None:
    """Reads the manifest in the first argument, writes a CSV to the second."""
    source, target = map(Path, sys.argv[1:3])
    clips = survey_manifest(
        source, ShapeRules(), max_bad_share=1.0, console=Console(stderr=True)
    ).clips
    kinds = np.stack(
        [clips.frames, clips.height // _STEP * _STEP, clips.width // _STEP * _STEP]
    )
    kinds, inverse = np.unique(kinds, axis=1, return_inverse=True)
    count = np.zeros(kinds.shape[1], np.int64)
    np.add.at(count, inverse.ravel(), clips.count)
    lines = ["num_frames,height,width,count"]
    lines += [f"{f},{h},{w},{n}" for (f, h, w), n in zip(kinds.T, count, strict=True)]
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
