"""Draws a random manifest: `python -m benchmarks.draw_workload NAME OUT.csv`.

| name | workload |
|---|---|
| `few-long` | long videos of five sizes |
| `uhd` | videos of 720p to 4K in seven sizes, at many frame rates, some very long |
"""

import csv
import sys

import numpy as np

NAMES = ("few-long", "uhd")
_FEW_LONG = ((360, 640), (480, 640), (640, 360), (720, 1280), (240, 320))
_UHD = (
    (2160, 3840),
    (1080, 1920),
    (1920, 1080),
    (1440, 2560),
    (2160, 2160),
    (1080, 2560),
    (720, 720),
)
_RATES = (23.976, 24.0, 25.0, 29.97, 30.0, 50.0, 59.94, 60.0)


def draw(name: str, seed: int = 0) -> list[tuple[str, int, int, int, float]]:
    """Draws the rows of a manifest: id, frames, height, width, fps."""
    rng = np.random.default_rng(seed)
    if name == "few-long":
        seconds = np.clip(rng.lognormal(3.6, 0.5, 5_400), 5, 180)
        sizes = rng.choice(5, len(seconds), p=(0.55, 0.25, 0.08, 0.08, 0.04))
        return [
            (f"v{i}", int(29.97 * s), *_FEW_LONG[k], 29.97)
            for i, (s, k) in enumerate(zip(seconds, sizes, strict=True))
        ]
    frames = np.minimum(40 * (1 + rng.pareto(1.2, 30_000)), 1e6).astype(int)
    sizes = rng.integers(len(_UHD), size=len(frames))
    rates = rng.integers(len(_RATES), size=len(frames))
    return [
        (f"v{i}", int(frames[i]), *_UHD[sizes[i]], _RATES[rates[i]])
        for i in range(len(frames))
    ]


def main() -> None:
    """Writes the workload named by the first argument to the file in the second."""
    name, path = sys.argv[1:3]
    if name not in NAMES:
        sys.exit(f"{name}: expected one of {', '.join(NAMES)}")
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "num_frames", "height", "width", "fps"))
        writer.writerows(draw(name))


if __name__ == "__main__":
    main()
