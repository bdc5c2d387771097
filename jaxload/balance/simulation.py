"""Simulates steps of each policy under a cost model, without training.

| policy | micro-batches of each replica |
|---|---|
| `equal-token` | random buckets, whose batches hold about equal numbers of tokens |
| `dual` | as `equal-token`, with a second budget on tokens^p |
| `knapformer` | sequences of `equal-token`, longest first to the least busy replica; |
| | sequences are not split, and memory is ignored |
| `lockstep` | the same bucket as every other replica, at each micro-step |
| `mixed` | buckets of its own, dealt so that all replicas finish together |
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.config import Rule
from jaxload.balance.imbalance import (
    Imbalance,
    expected_distinct,
    idle_by_step,
    measure_imbalance,
)
from jaxload.balance.mixed import Mixed
from jaxload.balance.packing import longest_first
from jaxload.balance.scenario import (
    Scenario,
    batches_by_rule,
    make_lockstep,
    make_mixed,
)
from jaxload.balance.schedule import Lockstep
from jaxload.errors import InputError

POLICIES = ("equal-token", "dual", "knapformer", "lockstep", "mixed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """Result of simulating some steps under one policy."""

    policy: str
    buckets: tuple[Bucket, ...]
    seconds: np.ndarray
    """Cost per step and replica, [steps, replicas], in the unit of the cost model."""

    work: float
    """Cost of the samples, without idle time and without fixed costs."""

    samples: int
    tokens: int
    memory: np.ndarray
    """Tokens per device of the largest micro-batch, divided by the token budget;
    [steps, replicas]."""

    distinct: float
    """Mean number of distinct shapes in a step."""

    mixing: float
    """Ratio of `distinct` to its expectation for as many random micro-batches."""

    num_compiles: int | None
    """Number of programs; None if the policy has no static shapes."""

    carried: int | None = None
    """Samples that the first epoch carries over to the next; None without epochs."""

    note: str = ""

    @property
    def imbalance(self) -> Imbalance:
        """Imbalance between replicas, by every definition."""
        return measure_imbalance(self.seconds)

    @property
    def idle_by_step(self) -> np.ndarray:
        """Idle share of each step."""
        return idle_by_step(self.seconds)

    @property
    def total_seconds(self) -> float:
        """Cost of all steps; each step takes as long as its slowest replica."""
        return float(self.seconds.max(axis=1).sum())

    @property
    def throughput(self) -> float:
        """Throughput relative to replicas that never idle and have no fixed cost."""
        return self.work / (self.total_seconds * self.seconds.shape[1])


def simulate_policy(
    policy: str,
    scenario: Scenario,
    *,
    num_steps: int,
    schedule: Lockstep | Mixed | None = None,
    on_step: Callable[..., None] = lambda count=1: None,
) -> SimulationResult:
    """Simulates the first steps of a run.

    Args:
        policy: One of POLICIES.
        scenario: Samples, costs, memory and replicas.
        num_steps: Number of steps.
        schedule: Schedule of the policy, if it has one; built unless it is given.
        on_step: Called after each step, or with the number of steps done at once.
    """
    match policy:
        case "equal-token" | "dual":
            result = _simulate_random(policy, scenario, num_steps)
            on_step(num_steps)
            return result
        case "knapformer":
            return _simulate_knapformer(scenario, num_steps, on_step)
    schedule = schedule or make_schedule(policy, scenario)
    counts = []
    for step in range(num_steps):
        counts.append(schedule.step_counts(step))
        on_step()
    carried = sum(schedule.carried(0).values())
    missing = set(scenario.cover.shapes) - {b.shape for b in schedule.buckets}
    note = ""
    if missing:
        note = f"leaves out {len(missing)} shapes with fewer samples than replicas"
    result = _summarize(
        policy,
        schedule.buckets,
        np.stack(counts),
        schedule.epoch_counts(),
        scenario,
        note,
    )
    return dataclasses.replace(result, carried=carried)


def make_schedule(
    policy: str, scenario: Scenario, on_attempt: Callable[[], None] = lambda: None
) -> Lockstep | Mixed:
    """Builds the schedule of the policy `lockstep` or `mixed`; see `deal_of`."""
    match policy:
        case "lockstep":
            return make_lockstep(scenario)
        case "mixed":
            return make_mixed(scenario, on_attempt)
    raise InputError(f"policy {policy!r}: expected some of {', '.join(POLICIES)}")


def _simulate_random(
    policy: Rule, scenario: Scenario, num_steps: int
) -> SimulationResult:
    catalogue = batches_by_rule(scenario, policy)
    note = f"p = {catalogue.exponent:.2f}" if catalogue.exponent else ""
    counts = _draw(catalogue.buckets, scenario, num_steps)
    weight = _draw_weights(catalogue.buckets)
    return _summarize(policy, catalogue.buckets, counts, weight, scenario, note)


def _draw(buckets: Sequence[Bucket], scenario: Scenario, num_steps: int) -> np.ndarray:
    """Draws random micro-batches, weighted by frequency: [steps, replicas, buckets]."""
    rng = np.random.default_rng(scenario.seed)
    weight = _draw_weights(buckets)
    return rng.multinomial(
        scenario.accumulate,
        weight / weight.sum(),
        size=(num_steps, scenario.num_replicas),
    )


def _draw_weights(buckets: Sequence[Bucket]) -> np.ndarray:
    """Returns the number of micro-batches of each bucket in an epoch."""
    return np.array([b.num_samples / b.batch for b in buckets])


def _simulate_knapformer(
    scenario: Scenario, num_steps: int, on_step: Callable[..., None]
) -> SimulationResult:
    """Simulates KnapFormer: sequences move between replicas to even out their cost.

    Each step has the sequences that the policy `equal-token` draws. Each replica runs
    its share as one batch without padding; moving the sequences costs nothing here.
    """
    drawn = _simulate_random("equal-token", scenario, num_steps)
    counts = _draw(drawn.buckets, scenario, num_steps).sum(axis=1)
    sequences = counts * np.array([b.batch for b in drawn.buckets])
    # The devices of a replica share its sequences evenly.
    programs = [bucket.program for bucket in drawn.buckets]
    tokens = np.array([p.tokens / p.layout.num_devices for p in programs])
    cost = np.array([scenario.cost_model.sample(p) / p.layout.batch for p in programs])
    dealt = []
    for row in sequences.tolist():
        dealt.append(longest_first(cost.tolist(), row, scenario.num_replicas))
        on_step()
    return dataclasses.replace(
        drawn,  # Same sequences, hence same samples, tokens and mixing.
        policy="knapformer",
        num_compiles=None,
        seconds=scenario.cost_model.fixed + np.stack(dealt) @ cost,
        memory=np.stack(dealt) @ tokens / _token_budget(scenario),
        note="memory is ignored; packed batches of any length",
    )


def _summarize(
    policy: str,
    buckets: tuple[Bucket, ...],
    counts: np.ndarray,
    epoch_counts: np.ndarray,
    scenario: Scenario,
    note: str,
) -> SimulationResult:
    """Summarizes steps from their micro-batches, [steps, replicas, buckets]."""

    def of_each(value: Callable[[Bucket], float]) -> np.ndarray:
        return np.array([value(bucket) for bucket in buckets])

    cost, batch = of_each(lambda b: b.cost), of_each(lambda b: b.batch)
    tokens = of_each(lambda b: b.batch * b.tokens)
    held = of_each(lambda b: b.program.tokens_per_device)
    sample = of_each(
        lambda b: b.program.samples_per_device * scenario.cost_model.sample(b.program)
    )
    total = counts.sum(axis=(0, 1))
    largest = np.where(counts > 0, held, 0).max(axis=2)
    distinct, mixing = _mixing(buckets, counts, epoch_counts)
    return SimulationResult(
        policy=policy,
        buckets=buckets,
        seconds=counts @ cost,
        work=float(total @ sample),
        samples=int(total @ batch),
        tokens=int(total @ tokens),
        memory=largest / _token_budget(scenario),
        distinct=distinct,
        mixing=mixing,
        num_compiles=len(buckets),
        note=note,
    )


def _token_budget(scenario: Scenario) -> int:
    """Returns the token budget per device, or the tokens of the largest program."""
    if scenario.config.max_tokens:
        return scenario.config.max_tokens
    return max(limit.program.tokens_per_device for limit in scenario.limits())


def _mixing(
    buckets: Sequence[Bucket], counts: np.ndarray, epoch_counts: np.ndarray
) -> tuple[float, float]:
    """Returns the mean distinct shapes of a step, and their ratio to a random draw.

    The random draw is from the whole epoch. Steps that have one shape each therefore
    count as poorly mixed, even if the shape changes from step to step.
    """
    shapes = list(dict.fromkeys(b.shape for b in buckets))
    of_shape = np.zeros((len(buckets), len(shapes)), np.int64)
    for i, bucket in enumerate(buckets):
        of_shape[i, shapes.index(bucket.shape)] = 1
    by_step = counts.sum(axis=1) @ of_shape
    distinct = float((by_step > 0).sum(axis=1).mean())
    draws = float(by_step.sum(axis=1).mean())
    return distinct, distinct / expected_distinct(epoch_counts @ of_shape, draws)
