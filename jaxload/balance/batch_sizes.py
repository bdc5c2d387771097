"""Batch sizes: from two budgets, memory and compute, by one of three rules."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape

Rule = Literal["equal-token", "dual", "dual-cost"]
Policy = Literal["lockstep", "mixed"]

MaxBatch = Callable[[Shape], int]
"""Samples of a shape that memory allows in one micro-batch; 0 if one is too many."""

_MAX_BUDGETS = 512
_FEW_REPLICAS = 16  # Budgets are judged for at least so many.


@dataclasses.dataclass(frozen=True, kw_only=True)
class BalanceConfig:
    """How shapes, batch sizes and the deal over replicas are chosen."""

    max_tokens: int
    """Memory budget: tokens that one micro-batch may hold on one replica."""

    max_bytes: int = 0
    """Memory of a device; programs are compiled to see what fits. 0: tokens alone."""

    max_compute_tokens: int = 0
    """Compute budget: what one sequence of this many tokens costs; 0: searched."""

    policy: Policy = "lockstep"
    """Every replica runs the same bucket at once, or each its own."""

    rule: Rule = "dual-cost"
    """Batch size from memory alone, with tokens^exponent, or with the cost model."""

    exponent: float = 0.0
    """The power of the tokens in the rule `dual`; 0: fitted to the cost model."""

    max_buckets: int = 32
    """Shapes that are kept; what fits none of them is dropped, and counted."""

    max_programs: int = 0
    """Programs of a mixed plan, in which a shape may have several batch sizes; 0: at
    most twice max_buckets."""

    def __post_init__(self):
        for name in ("max_tokens", "max_buckets"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"balance.{name}={getattr(self, name)}: expected 1 or more"
                )
        for name in ("max_bytes", "max_programs"):
            if getattr(self, name) < 0:
                raise InputError(
                    f"balance.{name}={getattr(self, name)}: expected 0 or more"
                )
        if self.max_compute_tokens < 0:
            raise InputError(
                f"balance.max_compute_tokens={self.max_compute_tokens}: expected 0 "
                "or more; 0 has the budget searched"
            )
        if self.exponent and self.exponent < 1.0:
            raise InputError(
                f"balance.exponent={self.exponent}: expected 1.0 or more, or 0 to have "
                "it fitted; cost grows at least with the number of tokens"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The buckets that a rule gives, by ascending tokens."""

    buckets: tuple[Bucket, ...]
    budget: float
    """Cost that a micro-batch may have, in the unit of the rule."""

    exponent: float
    """Of the rule `dual`; 0 for the others."""


def choose_batches(
    shapes: Sequence[Shape],
    num_samples: Sequence[int],
    *,
    config: BalanceConfig,
    cost_model: CostModel,
    max_batch: MaxBatch,
    num_replicas: int,
    together: bool = True,
) -> Catalogue:
    """Gives each shape the largest batch that both budgets allow, and at least 1.

    If replicas run a shape `together`, there is a micro-batch for each of them.
    """
    tokens = np.array([shape.tokens for shape in shapes])
    memory = np.array([max_batch(shape) for shape in shapes])
    check_memory(shapes, memory, config)
    exponent = 0.0
    if config.rule == "dual":
        exponent = config.exponent or max(1.0, cost_model.exponent(tokens))
    price = _price(config.rule, cost_model, exponent)
    available = np.array(num_samples) // (num_replicas if together else 1)
    limit = np.maximum(1, np.minimum(memory, available))
    if config.rule == "equal-token":
        budget, batch = 0.0, limit
    else:
        if config.max_compute_tokens:
            budget = float(price(config.max_compute_tokens))
        else:
            budget = _search_budget(
                price(tokens),
                limit,
                np.array(num_samples),
                tokens,
                cost_model,
                num_replicas,
            )
        batch = _batches(price(tokens), limit, budget)
    over = memory < 1
    if budget:
        over |= price(tokens) > budget * (1 + 1e-9)
    buckets = tuple(
        Bucket(
            shape=shape,
            batch=int(batch[i]),
            num_samples=num_samples[i],
            cost=float(cost_model(int(batch[i]), shape.tokens)),
            over_budget=bool(over[i]),
        )
        for i, shape in enumerate(shapes)
    )
    if config.rule == "dual-cost":
        budget += cost_model.fixed  # Paid once, whatever the batch.
    return Catalogue(buckets=buckets, budget=budget, exponent=exponent)


def check_memory(
    shapes: Sequence[Shape], memory: np.ndarray, config: BalanceConfig
) -> None:
    """Refuses a memory budget that not even the smallest shape fits into."""
    if memory.max() < 1:
        smallest = min(shapes, key=lambda shape: shape.tokens)
        kind = "bytes" if config.max_bytes else "tokens"
        raise InputError(
            f"balance.max_{kind}={getattr(config, f'max_{kind}')}: not one sample of "
            f"{smallest}, {smallest.tokens} tokens, fits; raise it, or shard sequences"
        )


def _price(
    rule: Rule, cost_model: CostModel, exponent: float
) -> Callable[[int | np.ndarray], np.ndarray]:
    """What a rule takes one sample to cost."""
    if rule == "dual":
        return lambda tokens: np.asarray(tokens, float) ** exponent
    return lambda tokens: np.asarray(cost_model.sample(np.asarray(tokens)), float)


def _batches(price: np.ndarray, limit: np.ndarray, budget: float) -> np.ndarray:
    # A budget is often a multiple of a price; rounding must not lose the last sample.
    return np.maximum(1, np.minimum(limit, np.floor(budget / price * (1 + 1e-12))))


def _search_budget(
    price: np.ndarray,
    limit: np.ndarray,
    num_samples: np.ndarray,
    tokens: np.ndarray,
    cost_model: CostModel,
    num_replicas: int,
) -> float:
    """The budget at which replicas that draw buckets at random idle least.

    Batches are whole, so a budget just below a multiple of a common price wastes up to
    one sample of every micro-batch. Those that some shape fills exactly are tried, from
    the price of the dearest sample to the dearest micro-batch that memory allows.
    """
    least, most = price.max(), (price * limit).max()
    exact = [p * np.arange(1, int(b) + 1) for p, b in zip(price, limit, strict=True)]
    tried = np.unique(np.concatenate([*exact, [least]]))
    tried = tried[(tried >= least) & (tried <= most)]
    tried = tried[:: max(1, len(tried) // _MAX_BUDGETS)]
    idle = []
    for budget in tried:
        batch = _batches(price, limit, budget)
        cost = np.asarray(cost_model(batch, tokens))
        idle.append(
            expected_idle(cost, num_samples / batch, max(num_replicas, _FEW_REPLICAS))
        )
    best = min(range(len(tried)), key=lambda i: (round(idle[i], 4), -tried[i]))
    return float(tried[best])


def expected_idle(cost: np.ndarray, weight: np.ndarray, num_replicas: int) -> float:
    """Idle share of replicas that draw micro-batches at random, one each a step."""
    order = np.argsort(cost)
    below = np.cumsum(weight[order]) / weight.sum()
    longest = np.diff(below**num_replicas, prepend=0.0) @ cost[order]
    return float(1 - (cost @ weight) / weight.sum() / longest)
