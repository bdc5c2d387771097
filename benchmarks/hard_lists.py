"""Lists of samples that are hard to plan for, by name.

Each list is a function from a random generator and a number of rows to the sizes of the
samples, [rows, (frames, height, width)]. Few rows leave remainders that are hard to
pack, costs that are far apart have many ways to fill a step, and many sizes make many
candidates for shapes.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxload.shapes.config import ShapeRules

NUM_ROWS = 1_000_000

_FEW_ROWS = 5_000
_SIZES = ("num_frames", "height", "width")
_TINY, _HUGE = (1, 16, 16), (81, 720, 1280)
_MAX_FRAMES = 81
_TOKEN = 16  # Pixels per side of a token.
_MAX_AREA = 3_600  # Tokens of 720 x 1280 pixels.
_VIDEO_FRAMES = 5_000_000  # 87 hours, which are cut into 61,729 clips.
_RARE = 16  # Fewest samples that a shape may have.

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Function that draws the sizes of a number of samples."""


def write_list(name: str, num_rows: int, path: Path) -> int:
    """Writes a list of at most `num_rows` as Parquet with ids; returns its rows."""
    sizes = HARD_LISTS[name](np.random.default_rng(0), num_rows)
    columns = {
        "id": pa.array(np.arange(len(sizes))).cast(pa.string()),
        **{
            column: pa.array(values, pa.int32())
            for column, values in zip(_SIZES, sizes.T, strict=True)
        },
        "fps": pa.array(np.where(sizes[:, 0] > 1, ShapeRules().fps, 0.0)),
    }
    pq.write_table(pa.table(columns), path)
    return len(sizes)


def _few(draw: Draw) -> Draw:
    return lambda rng, num_rows: draw(rng, min(num_rows, _FEW_ROWS))


def _clips(frames: np.ndarray) -> np.ndarray:
    """Returns clips of 480 x 832 pixels with these numbers of frames."""
    sides = np.broadcast_to((480, 832), (len(frames), 2))
    return np.column_stack([np.maximum(frames, 1).astype(np.int64), sides])


def _of_area(frames: np.ndarray, tokens: np.ndarray, aspect: np.ndarray) -> np.ndarray:
    """Returns clips whose frames have about these numbers of tokens."""
    height = np.sqrt(np.minimum(tokens, _MAX_AREA) / aspect)
    sides = np.column_stack([height, height * aspect]) * _TOKEN
    sides = np.maximum(sides.round(), _TOKEN)
    frames = np.clip(frames, 1, _MAX_FRAMES)
    return np.column_stack([frames, sides]).astype(np.int64)


def _pareto(exponent: float) -> Draw:
    def draw(rng: np.random.Generator, num_rows: int) -> np.ndarray:
        return _clips(np.minimum(1 + 4 * rng.pareto(exponent, num_rows), 10_000))

    return draw


def _pareto_areas(exponent: float) -> Draw:
    def draw(rng: np.random.Generator, num_rows: int) -> np.ndarray:
        frames, tokens = 1 + rng.pareto(exponent, (2, num_rows))
        return _of_area(4 * frames, tokens, np.ones(num_rows))

    return draw


def _log_uniform(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    frames, tokens, aspect = (
        np.exp(rng.uniform(low, high, num_rows))
        for low, high in ((0, np.log(_MAX_FRAMES)), (0, np.log(_MAX_AREA)), (-1, 1))
    )
    return _of_area(frames, tokens, aspect)


def _all_distinct(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    frames, sides = np.arange(1, _MAX_FRAMES + 1, 4), np.arange(_TOKEN, 961)
    shape = (len(frames), len(sides), len(sides))
    picked = rng.choice(np.prod(shape), num_rows, replace=False)
    of_frames, *of_sides = np.unravel_index(picked, shape)
    return np.column_stack([frames[of_frames], *(sides[i] for i in of_sides)])


def _mostly(
    common: tuple[int, int, int], rare: tuple[int, int, int], num_rare: int
) -> Draw:
    def draw(rng: np.random.Generator, num_rows: int) -> np.ndarray:
        return np.repeat([common, rare], [num_rows - num_rare, num_rare], axis=0)

    return draw


def _tiny_and_huge(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    return np.array([_TINY, _HUGE])[rng.integers(2, size=num_rows)]


def _thumbnails_and_videos(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    """Draws many small and many large sizes, each about half as often as the last."""
    small = [(1, _TOKEN * h, _TOKEN * w) for h in (1, 2, 3, 4) for w in (1, 2, 3, 4)]
    large = [(f, 720, w) for f in (69, 73, 77, 81) for w in (720, 896, 1_072, 1_280)]
    sizes = np.stack([small, large], axis=1).reshape(-1, 3)
    weight = 0.7 ** np.arange(len(sizes))
    return sizes[rng.choice(len(sizes), num_rows, p=weight / weight.sum())]


def _squares(count: Callable[[int], int]) -> Draw:
    """Returns a list of 23 square images of any area, the i-th `count(i)` times."""

    def draw(rng: np.random.Generator, num_rows: int) -> np.ndarray:
        sides = sorted({_TOKEN * round(1.127**k) for k in range(33)})
        counts = [count(i) for i in range(len(sides))]
        return np.repeat([(1, side, side) for side in sides], counts, axis=0)[:num_rows]

    return draw


def _equal_tokens(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    """Draws clips of 3,600 tokens, with frames and sides that divide that number."""
    sizes = [
        (4 * frames - 3, _TOKEN * height, _TOKEN * (_MAX_AREA // frames // height))
        for frames in range(1, 22)
        for height in range(4, 81)
        if _MAX_AREA % (frames * height) == 0
        and 1 / 4 <= height**2 * frames / _MAX_AREA <= 4
    ]
    return np.array(sizes)[rng.integers(len(sizes), size=num_rows)]


def _prime_frames(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    is_prime = np.ones(10_000, bool)
    is_prime[:2] = False
    for factor in range(2, 100):
        is_prime[2 * factor :: factor] = False
    return _clips(rng.choice(np.flatnonzero(is_prime), num_rows))


def _two_humps(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    short, long = rng.lognormal(1.5, 0.5, num_rows), rng.lognormal(4.2, 0.1, num_rows)
    return _clips(np.where(rng.random(num_rows) < 0.5, short, long))


def _alike_and_singles(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    singles = _log_uniform(rng, num_rows // 1_000)
    alike = np.repeat([(_MAX_FRAMES, 480, 832)], num_rows - len(singles), axis=0)
    return np.concatenate([alike, singles])


HARD_LISTS: dict[str, Draw] = {
    "Pareto lengths 0.5, few": _few(_pareto(0.5)),
    "Pareto lengths 1, few": _few(_pareto(1.0)),
    "Pareto lengths 2, few": _few(_pareto(2.0)),
    "Pareto lengths 1": _pareto(1.0),
    "Pareto areas 0.5, few": _few(_pareto_areas(0.5)),
    "Pareto areas 1": _pareto_areas(1.0),
    "log-uniform, few": _few(_log_uniform),
    "log-uniform": _log_uniform,
    "all distinct": _all_distinct,
    "tiny and huge": _tiny_and_huge,
    "tiny, few huge": _mostly(_TINY, _HUGE, _RARE),
    "huge, few tiny": _mostly(_HUGE, _TINY, _RARE),
    "tiny, one long video": _mostly(_TINY, (_VIDEO_FRAMES, *_HUGE[1:]), 1),
    "thumbnails and videos": _thumbnails_and_videos,
    "few of each size": _squares(lambda i: _RARE + 1 + i),
    "geometric counts": _squares(lambda i: _RARE + int(1.5**i)),
    "equal tokens": _equal_tokens,
    "prime frames": _prime_frames,
    "two humps": _two_humps,
    "alike and singles": _alike_and_singles,
}
