"""Batch sizes from two budgets, memory and compute, by one of three rules."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.config import BalanceConfig, Rule
from jaxload.balance.cost import CostModel
from jaxload.balance.memory import Limit
from jaxload.balance.program import Program
from jaxload.balance.sample_class import SampleClass
from jaxload.errors import InputError

_MAX_BUDGETS = 512
_MAX_BATCHES = 50_000  # Most batches of one form that budgets are derived from.
_FEW_REPLICAS = 16  # Least number of replicas that budgets are compared for.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Buckets chosen by a rule, by ascending tokens."""

    buckets: tuple[Bucket, ...]
    budget: float
    """Compute budget of a micro-batch, in the unit of the rule; 0 for `equal-token`."""

    exponent: float
    """Power of the tokens in the rule `dual`; 0 for the other rules."""


def choose_batches(
    classes: Sequence[SampleClass],
    limits: Sequence[Limit],
    *,
    config: BalanceConfig,
    cost_model: CostModel,
    num_replicas: int,
    together: bool = True,
) -> Catalogue:
    """Gives each form the largest batch that both budgets allow.

    Args:
        classes: Samples of each form, by ascending tokens.
        limits: Largest program of each form within the memory budget.
        config: Rule and budgets.
        cost_model: Cost of a program.
        num_replicas: Number of replicas that samples are divided among.
        together: True if all replicas run the same form at once, so that a form needs
            samples for one micro-batch per replica.
    """
    programs = [limit.program for limit in limits]
    lengths = [c.lengths for c in classes]
    num_samples = np.array([c.num_samples for c in classes])
    unit = np.array([limit.unit for limit in limits])
    # A unit is the smallest batch; `max_units`, `limit` and `batch` count units.
    samples = np.array([limit.samples_per_device for limit in limits])
    max_units = np.array([limit.max_units for limit in limits])
    check_memory(limits, config)
    exponent = 0.0
    if config.rule == "dual":
        exponent = config.exponent or max(1.0, cost_model.exponent(programs))
    price = _Prices(config.rule, cost_model, exponent)
    prices = samples * [
        price.sample(program, length.mean)
        for program, length in zip(programs, lengths, strict=True)
    ]
    available = num_samples // (num_replicas if together else 1) // unit
    limit = np.maximum(1, np.minimum(max_units, available))
    if config.rule == "equal-token":
        budget, batch = 0.0, limit
    else:
        if config.max_compute_tokens:
            budget = price.tokens(config.max_compute_tokens, programs[-1])
        else:
            cost = samples * [
                cost_model.sample(program, length.mean)
                for program, length in zip(programs, lengths, strict=True)
            ]
            budget = _search_budget(
                prices,
                limit,
                num_samples / unit,
                lambda n: cost_model.fixed + n * cost,
                num_replicas,
            )
        batch = _batches(prices, limit, budget)
    over = max_units < 1
    if budget:
        over |= prices > budget * (1 + 1e-9)
    sizes = (batch * unit).astype(int).tolist()
    chosen = [p.resized(size) for p, size in zip(programs, sizes, strict=True)]
    buckets = tuple(
        Bucket(
            program=program,
            num_samples=classes[i].num_samples,
            lengths=lengths[i],
            cost=cost_model(program, lengths[i].mean),
            over_budget=bool(over[i]),
        )
        for i, program in enumerate(chosen)
    )
    if config.rule == "dual-cost":
        budget += cost_model.fixed  # Fixed cost, paid once per micro-batch.
    return Catalogue(buckets=buckets, budget=budget, exponent=exponent)


def check_memory(limits: Sequence[Limit], config: BalanceConfig) -> None:
    """Refuses a memory budget that is too small for every form."""
    if any(limit.within_budget for limit in limits):
        return
    smallest = min((limit.program for limit in limits), key=lambda p: p.tokens)
    budget = "memory of a device (balance.max_bytes)"
    if config.max_bytes or config.max_tokens:
        name = "max_bytes" if config.max_bytes else "max_tokens"
        budget = f"balance.{name}={getattr(config, name)}"
    remedy = "raise it, plan or prepare smaller clips (shapes.max_frames and "
    remedy += "shapes.max_pixels)"
    if config.max_bytes or not config.max_tokens:
        remedy += ", shard the model over more devices (mesh.fsdp), or use a smaller "
        remedy += "model"
    raise InputError(
        f"{budget}: not one sample of {smallest.form}, {smallest.tokens} tokens, fits "
        f"on a device; {remedy}"
    )


class _Prices:
    """Price of one sample per device, in the unit of a rule's compute budget."""

    def __init__(self, rule: Rule, cost_model: CostModel, exponent: float):
        self._exponent = exponent if rule == "dual" else None
        self._cost_model = cost_model

    def sample(self, program: Program, mean_length: float) -> float:
        if self._exponent is None:
            return self._cost_model.sample(program, mean_length)
        price = self.tokens(program.tokens, program)
        return price / program.layout.devices_per_sample

    def tokens(self, tokens: int, like: Program) -> float:
        """Returns the price of one sequence, with the remat policy of `like`."""
        if self._exponent is not None:
            return float(tokens) ** self._exponent
        return float(self._cost_model.laws[like.remat].sample(tokens))


def _batches(price: np.ndarray, limit: np.ndarray, budget: float) -> np.ndarray:
    # Budgets are often multiples of a price; rounding must not lose the last sample.
    return np.maximum(1, np.minimum(limit, np.floor(budget / price * (1 + 1e-12))))


def _search_budget(
    price: np.ndarray,
    limit: np.ndarray,
    num_units: np.ndarray,
    cost: Callable[[np.ndarray], np.ndarray],
    num_replicas: int,
) -> float:
    """Returns the budget at which replicas that draw buckets at random idle least.

    Batches are whole, so a budget just below a multiple of a common price wastes up to
    one unit of every micro-batch. The search is over budgets that some form fills
    exactly, from the price of the costliest unit to that of the costliest micro-batch
    within the memory budget.
    """
    least, most = price.max(), (price * limit).max()
    exact = [p * _some_batches(int(b)) for p, b in zip(price, limit, strict=True)]
    tried = np.unique(np.concatenate([*exact, [least]]))
    tried = tried[(tried >= least) & (tried <= most)]
    tried = tried[:: max(1, len(tried) // _MAX_BUDGETS)]
    idle = []
    for budget in tried:
        batch = _batches(price, limit, budget)
        weight, replicas = num_units / batch, max(num_replicas, _FEW_REPLICAS)
        idle.append(expected_idle(cost(batch), weight, replicas))
    best = min(range(len(tried)), key=lambda i: (round(idle[i], 4), -tried[i]))
    return float(tried[best])


def _some_batches(most: int) -> np.ndarray:
    """Returns the batches from 1 to `most`; if they are many, evenly spaced ones."""
    return np.unique(np.linspace(1, most, min(most, _MAX_BATCHES)).round())


def expected_idle(cost: np.ndarray, weight: np.ndarray, num_replicas: int) -> float:
    """Returns the expected idle share if each replica draws one random micro-batch."""
    order = np.argsort(cost)
    below = np.cumsum(weight[order]) / weight.sum()
    longest = np.diff(below**num_replicas, prepend=0.0) @ cost[order]
    return float(1 - (cost @ weight) / weight.sum() / longest)
