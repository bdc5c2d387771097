"""Samples that a plan is made for, counted by latent shape."""

import dataclasses
import hashlib
from collections.abc import Mapping

from jaxload.balance.config import BalanceConfig
from jaxload.balance.program import Layout
from jaxload.console import Console, count_up
from jaxload.data.form_rows import shape_counts
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.planning.plan_limits import MAX_REPLICAS
from jaxload.planning.survey import Survey
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import Cover, cover
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape
from jaxload.shapes.size_cover import cover_sizes

_MIN_SAMPLES = 16  # Samples that justify a program, for any number of replicas.
_RANDOM_PER_REPLICA = 1_024  # Random samples of each shape for each replica.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples by latent shape, before any is cut for a program."""

    cover: Cover
    """Shapes with their numbers of samples, and what was left out before."""

    may_cut: bool
    """True if a sample may run by its first latent frames, as causal codecs allow."""

    dataset: str
    """Digest of the dataset, or of the list of samples."""

    rules: ShapeRules | None
    """Rules that assigned samples to sizes; None: samples were already prepared."""

    @classmethod
    def of_counts(
        cls, counts: Mapping[Shape, int], *, may_cut: bool, dataset: str
    ) -> "Samples":
        """Returns prepared samples, whose content is their tokens."""
        if not counts:
            raise InputError(
                "no sample to plan for: expected a dataset with at least one"
            )
        content = float(sum(n * shape.tokens for shape, n in counts.items()))
        cover = Cover(
            shapes=tuple(counts),
            num_samples=tuple(counts.values()),
            content=content,
            grid_content=content,
            left_out=(),
        )
        return cls(cover=cover, may_cut=may_cut, dataset=dataset, rules=None)

    @property
    def counts(self) -> dict[Shape, int]:
        """Number of samples of each shape."""
        return dict(zip(self.cover.shapes, self.cover.num_samples, strict=True))

    @property
    def geometry(self) -> Geometry:
        """Geometry of the codec and the model."""
        return self.cover.shapes[0].geometry


def prepared_samples(manifest: Manifest) -> Samples:
    """Counts the samples of a prepared dataset."""
    return Samples.of_counts(
        shape_counts(manifest), may_cut=manifest.may_cut, dataset=manifest.digest()
    )


def surveyed_samples(
    survey: Survey,
    rules: ShapeRules,
    *,
    may_cut: bool,
    console: Console,
) -> Samples:
    """Assigns a list of samples that are not prepared yet to sizes, as `prepare` does.

    Args:
        survey: Clips of the list.
        rules: Limits on sizes.
        may_cut: Whether the codec is causal.
        console: Shows progress.
    """
    with count_up(console, "choosing sizes", "attempts") as advance:
        chosen = cover_sizes(survey.clips, rules=rules, on_attempt=advance).cover
    return _surveyed(survey, chosen, rules, may_cut=may_cut)


def shaped_samples(
    survey: Survey,
    rules: ShapeRules,
    *,
    max_shapes: int,
    min_samples: int,
    console: Console,
) -> Samples:
    """Cuts a list of samples to few shapes, as published methods do before encoding.

    Args:
        survey: Clips of the list.
        rules: Limits on shapes.
        max_shapes: Most shapes; frames are chosen together with sizes.
        min_samples: Fewest samples of a shape.
        console: Shows progress.
    """
    with count_up(console, "choosing shapes", "attempts") as advance:
        chosen = cover(
            survey.clips,
            rules=rules,
            max_shapes=max_shapes,
            min_samples=min_samples,
            on_attempt=advance,
        )
    return _surveyed(survey, chosen, rules, may_cut=False)


def _surveyed(
    survey: Survey, chosen: Cover, rules: ShapeRules, *, may_cut: bool
) -> Samples:
    left_out = (*survey.bad, *survey.too_short, *chosen.left_out)
    return Samples(
        cover=dataclasses.replace(chosen, left_out=left_out),
        may_cut=may_cut,
        dataset=_survey_digest(survey),
        rules=rules,
    )


def random_samples(
    shapes: tuple[Shape, ...], layout: Layout, *, may_cut: bool, num_replicas: int
) -> Samples:
    """Assumes random samples of some shapes, to try a config without a dataset."""
    count = _RANDOM_PER_REPLICA * num_replicas * layout.batch
    counts = dict.fromkeys(sorted(shapes), count)
    return Samples.of_counts(counts, may_cut=may_cut, dataset="random")


def fewest_samples(config: BalanceConfig, layout: Layout, num_replicas: int) -> int:
    """Returns the fewest samples of a program; in lockstep, one batch per replica."""
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
