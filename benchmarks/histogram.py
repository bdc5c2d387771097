"""Counts the clips of a manifest: `python -m benchmarks.histogram MANIFEST OUT.csv`.

The histogram has everything that a plan depends on, but no ids: the frames of clips at
the model's frame rate after cutting, sizes rounded down to 8 pixels, and counts.
"""

import sys
from pathlib import Path

import numpy as np

from jaxload.console import Console
from jaxload.planning.survey import survey_manifest
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT

_STEP = 8


def main() -> None:
    """Reads the manifest in the first argument, writes a CSV to the second."""
    source, target = map(Path, sys.argv[1:3])
    clips = survey_manifest(
        source,
        ShapeRules(),
        DEFAULT,
        max_bad_share=1.0,
        console=Console(stderr=True),
    ).clips
    sizes = np.stack(
        [clips.frames, clips.height // _STEP * _STEP, clips.width // _STEP * _STEP]
    )
    sizes, inverse = np.unique(sizes, axis=1, return_inverse=True)
    count = np.zeros(sizes.shape[1], np.int64)
    np.add.at(count, inverse.ravel(), clips.count)
    lines = ["num_frames,height,width,count"]
    lines += [f"{f},{h},{w},{n}" for (f, h, w), n in zip(sizes.T, count, strict=True)]
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
