"""Draws synthetic media: images and clips of one figure, each with a caption."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from jaxload.errors import InputError
from jaxload.files import write_atomically
from jaxload.media.config import SyntheticConfig
from jaxload.media.video_files import write_video

ORIGIN = ".origin"
"""Name of the file that records what the drawn media depend on."""

_COLOURS = {
    "red": (230, 50, 50),
    "green": (60, 200, 90),
    "blue": (70, 110, 240),
    "yellow": (240, 210, 60),
}
_BACKGROUNDS = {
    "black": (15, 15, 20),
    "grey": (95, 95, 100),
}
_DIRECTIONS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}
_SIZES = {"small": 0.18, "large": 0.27}
_FORMS = ("circle", "square")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """A circle or square on a plain background, moving in one direction or at rest."""

    form: str
    colour: str
    background: str
    size: str
    direction: str | None
    drift: float
    """Position from 0 to 1 on the axis perpendicular to the motion; 0 and 1 touch the
    edges. For a figure at rest, the position on both axes."""

    def caption(self) -> str:
        """Describes the scene in words."""
        motion = f"moving {self.direction}" if self.direction else "at rest"
        return (
            f"a {self.size} {self.colour} {self.form} {motion} "
            f"on a {self.background} background"
        )

    def draw(self, frames: int, height: int, width: int) -> np.ndarray:
        """Renders the scene in uint8; a moving figure crosses the frame once."""
        radius = _SIZES[self.size] * min(height, width)
        span = np.array([height, width]) - 2 * radius
        across = radius + span * self.drift
        video = np.empty((frames, height, width, 3), dtype=np.uint8)
        for i in range(frames):
            centre = across.copy()
            if self.direction is not None:
                step = np.array(_DIRECTIONS[self.direction])
                progress = i / (frames - 1)
                along = radius + span * (progress if step.sum() > 0 else 1 - progress)
                centre = np.where(step != 0, along, across)
            video[i] = self._frame(height, width, centre, radius)
        return video

    def _frame(
        self, height: int, width: int, centre: np.ndarray, radius: float
    ) -> np.ndarray:
        y = np.arange(height)[:, None] + 0.5 - centre[0]
        x = np.arange(width)[None, :] + 0.5 - centre[1]
        distance = {
            "circle": np.hypot(y, x) - radius,
            "square": np.maximum(abs(y), abs(x)) - 0.85 * radius,
        }[self.form]
        coverage = np.clip(0.5 - distance, 0.0, 1.0)[..., None]  # Antialiased.
        inside = np.array(_COLOURS[self.colour])
        outside = np.array(_BACKGROUNDS[self.background])
        return np.rint(outside + coverage * (inside - outside)).astype(np.uint8)


def random_scene(rng: np.random.Generator, *, moving: bool) -> Scene:
    """Draws a random scene, with its figure at rest unless `moving`."""
    return Scene(
        form=str(rng.choice(_FORMS)),
        colour=str(rng.choice(list(_COLOURS))),
        background=str(rng.choice(list(_BACKGROUNDS))),
        size=str(rng.choice(list(_SIZES))),
        direction=str(rng.choice(list(_DIRECTIONS))) if moving else None,
        drift=float(rng.uniform(0.2, 0.8)),
    )


def draw_media(
    config: SyntheticConfig,
    directory: Path,
    *,
    fps: float,
    on_file: Callable[[], None],
) -> None:
    """Draws a folder of images and clips with captions, each file from its own seed.

    Files are written to a sibling folder that is renamed at the end, so that a killed
    process leaves no folder that looks complete.
    """
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"drawn media {directory}: cannot be written ({error.strerror}); choose "
            "another data.path"
        ) from error
    captions = {}
    for i, clip in enumerate(_assign_clips(config)):
        frames, height, width = map(int, clip.split("x"))
        scene = random_scene(np.random.default_rng([config.seed, i]), moving=frames > 1)
        video = scene.draw(frames, height, width)
        name = f"{i:06d}.{'mp4' if frames > 1 else 'png'}"
        captions[name] = scene.caption()
        if frames > 1:
            write_video(partial / name, video, fps=fps)
        else:
            Image.fromarray(video[0]).save(partial / name)
        on_file()
    (partial / ORIGIN).write_text(config.origin())
    rows = [{"file_name": name, "caption": text} for name, text in captions.items()]
    lines = (json.dumps(row) + "\n" for row in rows)
    write_atomically(partial / "metadata.jsonl", lines)
    try:
        partial.rename(directory)
    except OSError:
        if not directory.exists():
            raise
        shutil.rmtree(partial)  # Another process finished the same media first.


def _assign_clips(config: SyntheticConfig) -> list[str]:
    """Returns a size for each sample, in random order.

    Each size occurs at least once, and sizes listed earlier are more likely.
    """
    num_sizes = len(config.clips)
    weights = 1.0 / (2.0 + np.arange(num_sizes))
    rng = np.random.default_rng([config.seed, config.num_samples])
    drawn = rng.choice(
        num_sizes, size=config.num_samples - num_sizes, p=weights / weights.sum()
    )
    order = rng.permutation(np.concatenate([np.arange(num_sizes), drawn]))
    return [config.clips[i] for i in order]
