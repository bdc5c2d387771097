"""Measures how long an encoder waits for decoding while a dataset is prepared.

    python -m benchmarks.preparing [--workers N]

The codec simulates a GPU: it sleeps for a fixed time per batch, and leaves the CPU to
the workers. Workers decode real videos, which are drawn for the benchmark. Three runs:

| run | result |
|---|---|
| `--workers 0` | reference: the other runs must write the same bytes |
| codec that takes no time | rate at which the workers decode |
| codec with a fixed time per batch | share of time that the encoder waits: below 5% |

The time per batch is chosen so that the workers decode 1.5 times as fast as the encoder
encodes. Encoder processes measure how long they have no batch, after the first one:
that is the wait for decoding, which `jaxload.prepare` prints too. The benchmark also
prints the time between batches, in which a GPU would be idle: the wait, and the work of
the encoder process between batches (stacking clips, checking latents).
"""

import argparse
import dataclasses
import functools
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from jaxload.console import Console
from jaxload.media.folder import list_media
from jaxload.media.preparation import Preparation
from jaxload.media.review import Review
from jaxload.media.runners import runner
from jaxload.media.stages import prepare
from jaxload.media.synthetic import random_scene
from jaxload.media.video_files import write_video
from jaxload.reports.prepare import write_report
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

_MAX_WAIT_SHARE = 0.05
_SPARE = 1.5  # Decoding capacity, as a multiple of the encoder's rate.
_BATCH = 4
_NUM_VIDEOS = 48
_CLIPS_PER_VIDEO = 4
_CLIP_FRAMES = 17
_SIZES = ((256, 256), (256, 384))
_SECONDS = "JAXLOAD_BENCHMARK_SECONDS"
_LOG = "JAXLOAD_BENCHMARK_LOG"


class StandIn:
    """Codec that simulates a GPU: it sleeps for a fixed time per batch."""

    name = "stand-in"
    channels = 3
    strides = (4, 8, 8)

    def encode(self, video: np.ndarray) -> np.ndarray:
        """Returns a subset of the pixels."""
        return video[::4, ::8, ::8].astype(np.float32)

    def decode(self, latent: np.ndarray) -> np.ndarray:
        """Returns the clip, with each latent pixel repeated."""
        frames = latent.repeat(4, axis=0)[3:]
        return frames.repeat(8, axis=1).repeat(8, axis=2).astype(np.uint8)

    def batch_size(self, pixels: tuple[int, int, int]) -> int:
        """Returns the same batch size for all clips."""
        return _BATCH

    def encode_batch(self, videos: np.ndarray) -> np.ndarray:
        """Sleeps, and appends the start and end time to the log file."""
        start = time.monotonic()
        time.sleep(float(os.environ[_SECONDS]))
        latents = np.stack([self.encode(video) for video in videos])
        with open(os.environ[_LOG], "a") as log:
            log.write(f"{start} {time.monotonic()}\n")
        return latents


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Start and end times of the batches of one run, in seconds."""

    starts: np.ndarray
    ends: np.ndarray
    wait_share: float
    """Share of the time after the first batch that the encoder waited for decoding."""

    @property
    def clips_per_second(self) -> float:
        """Clips per second after the first batch."""
        return _BATCH * (len(self.ends) - 1) / float(self.ends[-1] - self.ends[0])

    @property
    def idle_share(self) -> float:
        """Share of the time after the first batch in which no batch was encoded."""
        waits = self.starts[1:] - self.ends[:-1]
        return float(waits.sum() / (self.ends[-1] - self.ends[0]))


def draw_videos(folder: Path) -> None:
    """Draws videos of two sizes, each long enough for several clips."""
    folder.mkdir()
    for i in range(_NUM_VIDEOS):
        scene = random_scene(np.random.default_rng(i), moving=True)
        height, width = _SIZES[i % len(_SIZES)]
        video = scene.draw(_CLIPS_PER_VIDEO * _CLIP_FRAMES, height, width)
        write_video(folder / f"{i:03d}.mp4", video, fps=16)


def run(media: Path, out: Path, *, num_workers: int, seconds: float) -> Measured:
    """Prepares the videos with a codec that sleeps `seconds` per batch."""
    log = out.with_suffix(".log")
    os.environ.update({_SECONDS: str(seconds), _LOG: str(log)})
    output = io.StringIO()
    console = Console(file=output)
    shapes = [Shape.of_pixels((_CLIP_FRAMES, *size), DEFAULT) for size in _SIZES]
    preparation = Preparation(
        media=media,
        out=out,
        codec="benchmarks.preparing:StandIn",
        text_encoder="hashed-ngrams",
        text_dim=8,
        rules=ShapeRules(max_frames=_CLIP_FRAMES),
        geometry=DEFAULT,
        sizes=tuple(shape.size for shape in shapes),
    )
    prepare(
        preparation,
        list_media(media),
        run=runner(num_workers),
        review=Review(
            max_bad_share=0.0, write_report=functools.partial(write_report, out)
        ),
        console=console,
    )
    times = np.loadtxt(log, ndmin=2)
    share = wait_share(output.getvalue()) if num_workers else 0.0
    return Measured(starts=times[:, 0], ends=times[:, 1], wait_share=share)


def wait_share(output: str) -> float:
    """Reads the share of the time that encoders waited from the command's output."""
    match = re.search(r"waited for decoding ([\d.]+)%", output)
    if match is None:
        raise AssertionError(f"no share of the time that encoders waited in {output!r}")
    return float(match[1]) / 100


def shards(out: Path) -> dict[str, bytes]:
    """Returns the bytes of the shards and the manifest of a dataset, by file name."""
    paths = [*sorted(out.glob("shard-*")), out / "manifest.parquet"]
    return {path.name: path.read_bytes() for path in paths}


def measure(directory: Path, num_workers: int) -> tuple[Measured, Measured, float]:
    """Returns the run limited by decoding, the run with a slow codec, and the seconds
    per batch of that codec."""
    media = directory / "media"
    draw_videos(media)
    run(media, directory / "here", num_workers=0, seconds=0.0)
    decoding = run(media, directory / "fast", num_workers=num_workers, seconds=0.0)
    seconds = _SPARE * _BATCH / decoding.clips_per_second
    encoding = run(media, directory / "slow", num_workers=num_workers, seconds=seconds)
    expected = shards(directory / "here")
    for name in ("fast", "slow"):
        if shards(directory / name) != expected:
            raise AssertionError(f"{name}: other bytes than --workers 0")
    return decoding, encoding, seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.preparing`; returns 1 if the goal is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preparing",
        description=(__doc__ or "").splitlines()[0],
    )
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--workers",
        type=int,
        default=min(2, cores),
        metavar="N",
        help="worker processes that decode (default: 2, or 1 on a single core)",
    )
    args = parser.parse_args(argv)
    if args.workers < 1:
        parser.error(f"--workers {args.workers}: expected 1 or more")
    with tempfile.TemporaryDirectory() as directory:
        decoding, encoding, seconds = measure(Path(directory), args.workers)
    table = Table(
        title=f"Preparing {_NUM_VIDEOS * _CLIPS_PER_VIDEO} clips of {_CLIP_FRAMES} "
        f"frames with {args.workers} workers on {cores} cores; load average "
        f"{os.getloadavg()[0]:.1f}"
    )
    for name in ("", "clips/s", "note"):
        table.add_column(name, justify="right" if name == "clips/s" else "left")
    spare = decoding.clips_per_second * seconds / _BATCH
    table.add_row("decoding only", f"{decoding.clips_per_second:.1f}", "capacity")
    table.add_row(
        "simulated codec only",
        f"{_BATCH / seconds:.1f}",
        f"{_BATCH} clips in {seconds * 1e3:.0f} ms; decoding is {spare:.2f} times as "
        "fast",
    )
    missed = encoding.wait_share >= _MAX_WAIT_SHARE
    table.add_row(
        "both",
        f"{encoding.clips_per_second:.1f}",
        ("[bold red]MISSED[/]: " if missed else "")
        + f"the encoder waits for decoding {encoding.wait_share:.1%} of the time after "
        f"the first batch, expected below {_MAX_WAIT_SHARE:.0%}; same bytes as "
        f"--workers 0; between batches {encoding.idle_share:.1%}",
    )
    # Without a width, piped tables would be truncated to 80 columns.
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
