"""Chooses the catalogue: at most so many shapes, and a batch size for each."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from jaxload.balance.cost import CostModel
from jaxload.balance.shape import Shape
from jaxload.errors import InputError

Rule = Literal["equal-token", "dual", "dual-cost"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BalanceConfig:
    """How shapes and batch sizes are chosen."""

    max_tokens: int
    """Memory budget: tokens that one micro-batch may hold on one replica."""

    max_compute_tokens: int = 0
    """Compute budget: what one sequence of this many tokens costs; 0: the longest."""

    rule: Rule = "dual-cost"
    """Batch size from memory alone, with tokens^exponent, or with the cost model."""

    exponent: float = 1.5
    """The power of the tokens in the compute budget of the rule `dual`."""

    max_buckets: int = 16
    """Programs that may be compiled; shapes beyond that are dropped, and counted."""

    def __post_init__(self):
        for name in ("max_tokens", "max_buckets"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"balance.{name}={getattr(self, name)}: expected 1 or more"
                )
        if self.max_compute_tokens < 0:
            raise InputError(
                f"balance.max_compute_tokens={self.max_compute_tokens}: expected 0 "
                "or more; 0 takes the longest shape of the data"
            )
        if self.exponent < 1.0:
            raise InputError(
                f"balance.exponent={self.exponent}: expected 1.0 or more; cost grows "
                "at least with the number of tokens"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A shape with a batch size: one compiled program."""

    shape: Shape
    batch: int
    """Samples of one micro-batch on one replica."""

    num_samples: int
    """Samples of the data set that have this shape."""

    cost: float
    """Of one micro-batch, in the unit of the cost model."""

    over_budget: bool
    """A single sample is already more than a budget allows."""

    def __str__(self) -> str:
        return f"{self.shape}@{self.batch}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropped:
    """Samples that no bucket takes."""

    shape: Shape
    num_samples: int
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The buckets of a run, by ascending tokens, and what they leave out."""

    buckets: tuple[Bucket, ...]
    dropped: tuple[Dropped, ...]


def choose_catalogue(
    counts: Mapping[Shape, int],
    *,
    config: BalanceConfig,
    cost_model: CostModel,
    num_replicas: int,
) -> Catalogue:
    """Picks the shapes that keep the most content, and a batch size for each.

    Content is tokens times samples. The result depends on the counts alone, not on
    their order, so every process of a job computes the same one.
    """
    if num_replicas < 1:
        raise InputError(f"{num_replicas} replicas: expected 1 or more")
    if not counts:
        raise InputError("no sample to plan for: expected a data set with at least one")
    dropped = []
    candidates = []
    for shape, count in sorted(counts.items()):
        if count < num_replicas:
            reason = f"too few samples for {num_replicas} replicas"
            dropped.append(Dropped(shape=shape, num_samples=count, reason=reason))
        else:
            candidates.append(shape)
    # Content first; the shape itself breaks ties, so that the order is total.
    candidates.sort(key=lambda shape: (-shape.tokens * counts[shape], shape))
    for shape in candidates[config.max_buckets :]:
        reason = f"not among the {config.max_buckets} shapes with the most content"
        dropped.append(Dropped(shape=shape, num_samples=counts[shape], reason=reason))
    kept = sorted(
        candidates[: config.max_buckets], key=lambda shape: (shape.tokens, shape)
    )
    if not kept:
        raise InputError(
            f"no shape has a sample for each of {num_replicas} replicas; the largest "
            f"count is {max(counts.values())}; use fewer replicas or more data"
        )
    longest = max(shape.tokens for shape in kept)
    buckets = tuple(
        _bucket(shape, counts[shape], longest, config, cost_model, num_replicas)
        for shape in kept
    )
    return Catalogue(buckets=buckets, dropped=tuple(dropped))


def _bucket(
    shape: Shape,
    num_samples: int,
    longest: int,
    config: BalanceConfig,
    cost_model: CostModel,
    num_replicas: int,
) -> Bucket:
    budget = config.max_compute_tokens or longest
    fits = budget_batch(shape.tokens, budget, config, cost_model)
    # Every replica needs a full micro-batch, even of a rare shape.
    batch = max(1, min(fits, num_samples // num_replicas))
    return Bucket(
        shape=shape,
        batch=batch,
        num_samples=num_samples,
        cost=cost_model(batch, shape.tokens),
        over_budget=fits < 1,
    )


def budget_batch(
    tokens: int, compute_tokens: int, config: BalanceConfig, cost_model: CostModel
) -> int:
    """Samples of `tokens` tokens that both budgets allow; 0 if one is too many."""
    in_memory = config.max_tokens // tokens
    match config.rule:
        case "equal-token":
            return in_memory
        case "dual":
            return min(in_memory, int((compute_tokens / tokens) ** config.exponent))
        case "dual-cost":
            # The fixed cost is paid once a micro-batch, whatever its size.
            budget = cost_model(1, compute_tokens) - cost_model.fixed
            return min(
                in_memory, int(budget / (cost_model(1, tokens) - cost_model.fixed))
            )
