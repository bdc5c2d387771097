"""Samples that a plan is made for: the shapes, and the number of samples of each."""

import dataclasses
import hashlib

from jaxload.balance.config import BalanceConfig
from jaxload.balance.program import Layout
from jaxload.console import Console, count_up
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.planning.plan_limits import MAX_REPLICAS
from jaxload.planning.survey import Survey
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import Cover, cover, cover_exactly
from jaxload.shapes.shape import Shape

_MIN_SAMPLES = 16  # Samples that justify a program, for any number of replicas.
_RANDOM_PER_REPLICA = 1_024  # Random samples of each shape for each replica.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """Shapes of a plan, with the number of samples of each."""

    cover: Cover
    dataset: str
    """Digest of the dataset, or of the list of samples."""

    rules: ShapeRules | None
    """Rules that assigned samples to shapes; None: samples were already prepared."""


def prepared_samples(
    manifest: Manifest,
    config: BalanceConfig,
    layout: Layout,
    *,
    num_replicas: int,
) -> Samples:
    """Counts the samples of a prepared dataset, whose shapes are fixed."""
    counts = {shape: len(rows) for shape, rows in manifest.rows_by_shape.items()}
    return Samples(
        cover=_exact_cover(counts, config, layout, num_replicas),
        dataset=manifest.digest(),
        rules=None,
    )


def surveyed_samples(
    survey: Survey,
    rules: ShapeRules,
    config: BalanceConfig,
    layout: Layout,
    *,
    num_replicas: int,
    console: Console,
) -> Samples:
    """Chooses shapes for a list of samples that are not prepared yet."""
    with count_up(console, "choosing shapes", "attempts") as advance:
        chosen = cover(
            survey.clips,
            rules=rules,
            max_shapes=config.max_buckets,
            min_samples=_min_samples(config, layout, num_replicas),
            on_attempt=advance,
        )
    chosen = dataclasses.replace(chosen, left_out=(*survey.bad, *chosen.left_out))
    return Samples(cover=chosen, dataset=_survey_digest(survey), rules=rules)


def random_samples(
    shapes: tuple[Shape, ...],
    config: BalanceConfig,
    layout: Layout,
    *,
    num_replicas: int,
) -> Samples:
    """Assumes random samples of some shapes, to try a config without a dataset."""
    count = _RANDOM_PER_REPLICA * num_replicas * layout.batch
    counts = dict.fromkeys(shapes, count)
    return Samples(
        cover=_exact_cover(counts, config, layout, num_replicas),
        dataset="random",
        rules=None,
    )


def _exact_cover(
    counts: dict[Shape, int], config: BalanceConfig, layout: Layout, num_replicas: int
) -> Cover:
    return cover_exactly(
        counts,
        max_shapes=config.max_buckets,
        min_samples=_min_samples(config, layout, num_replicas),
    )


def _min_samples(config: BalanceConfig, layout: Layout, num_replicas: int) -> int:
    """Returns the fewest samples of a shape; in lockstep, one batch per replica."""
    if not 1 <= num_replicas <= MAX_REPLICAS:
        raise InputError(f"{num_replicas} replicas: expected 1 to {MAX_REPLICAS:,}")
    smallest = layout.smallest_batch(config.batch_multiple)
    if config.policy == "lockstep":
        return num_replicas * smallest
    return max(smallest, min(num_replicas, _MIN_SAMPLES))


def _survey_digest(survey: Survey) -> str:
    """Returns a digest of a list of samples, independent of their order."""
    clips = survey.clips
    digest = hashlib.sha256()
    for column in (clips.frames, clips.height, clips.width, clips.count):
        digest.update(column.astype("int64").tobytes())
    return digest.hexdigest()[:16]
