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
from jaxload.balance.step_samples import (
    StepSamples,
    draw_at_random,
    draw_weights,
    from_schedule,
)
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
    """Cost of the samples at their own lengths: without padding, idle time and fixed
    costs."""

    samples: int
    tokens: int
    """Tokens of the samples, without padding."""

    padding: float
    """Share of all rows that is padding."""

    memory: np.ndarray
    """Tokens per device of the largest micro-batch, divided by the token budget;
    [steps, replicas]."""

    distinct: float
    """Mean number of distinct forms in a step."""

    distinct_shapes: float
    """Mean number of distinct latent shapes in a step."""

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
        """Throughput relative to replicas that never idle, without padding and fixed
        costs."""
        return self.work / (self.total_seconds * self.seconds.shape[1])

    @property
    def lost(self) -> float:
        """Share of the replicas' time lost to padding, idle time and fixed costs."""
        return 1 - self.throughput


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
    drawn = from_schedule(
        schedule,
        scenario.classes,
        num_steps=num_steps,
        seed=scenario.seed,
        on_step=on_step,
    )
    carried = sum(schedule.carried(0).values())
    missing = {c.form for c in scenario.classes} - {b.form for b in schedule.buckets}
    note = ""
    if missing:
        note = f"forms left out, with fewer samples than replicas: {len(missing)}"
    result = _summarize(policy, drawn, schedule.epoch_counts(), scenario, note)
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
    drawn, exponent = _draw(policy, scenario, num_steps)
    note = f"p = {exponent:.2f}" if exponent else ""
    return _summarize(policy, drawn, draw_weights(drawn.buckets), scenario, note)


def _draw(rule: Rule, scenario: Scenario, num_steps: int) -> tuple[StepSamples, float]:
    """Draws random micro-batches of a rule's sizes; also returns its exponent."""
    catalogue = batches_by_rule(scenario, rule)
    drawn = draw_at_random(
        catalogue.buckets,
        scenario.classes,
        num_steps=num_steps,
        num_replicas=scenario.num_replicas,
        num_micro_batches=scenario.accumulate,
        seed=scenario.seed,
    )
    return drawn, catalogue.exponent


def _simulate_knapformer(
    scenario: Scenario, num_steps: int, on_step: Callable[[], None]
) -> SimulationResult:
    """Simulates KnapFormer: sequences move between replicas to even out their cost.

    Each step has the sequences that the policy `equal-token` draws. Each replica runs
    its share as one batch without padding; moving the sequences costs nothing here.
    """
    drawn, _ = _draw("equal-token", scenario, num_steps)
    weights = draw_weights(drawn.buckets)
    same = _summarize("knapformer", drawn, weights, scenario, "")
    pairs = list(zip(drawn.buckets, drawn.classes, strict=True))
    cost = np.concatenate(
        [scenario.cost_model.own(b.program, c.tokens) for b, c in pairs]
    )
    # The devices of a replica share its sequences evenly.
    tokens = np.concatenate([c.tokens / b.program.layout.num_devices for b, c in pairs])
    sequences = np.concatenate(drawn.samples, axis=1)
    dealt = []
    for row in sequences.tolist():
        dealt.append(longest_first(cost.tolist(), row, scenario.num_replicas))
        on_step()
    return dataclasses.replace(
        same,
        num_compiles=None,
        padding=0.0,
        seconds=scenario.cost_model.fixed + np.stack(dealt) @ cost,
        memory=np.stack(dealt) @ tokens / _token_budget(scenario),
        note="memory is ignored; packed batches of any length",
    )


def _summarize(
    policy: str,
    drawn: StepSamples,
    epoch_counts: np.ndarray,
    scenario: Scenario,
    note: str,
) -> SimulationResult:
    """Summarizes the micro-batches of some steps."""
    buckets, counts = drawn.buckets, drawn.counts
    rows = counts.sum(axis=(0, 1)) * np.array([b.batch for b in buckets])
    padded = int(rows @ np.array([b.tokens for b in buckets]))
    tokens = int(drawn.tokens.sum())
    held = np.array([b.program.tokens_per_device for b in buckets])
    distinct, mixing = _mixing(buckets, counts, epoch_counts)
    return SimulationResult(
        policy=policy,
        buckets=buckets,
        seconds=drawn.seconds(scenario.cost_model),
        work=drawn.work(scenario.cost_model),
        samples=int(rows.sum()),
        tokens=tokens,
        padding=1 - tokens / padded,
        memory=np.where(counts > 0, held, 0).max(axis=2) / _token_budget(scenario),
        distinct=distinct,
        distinct_shapes=drawn.distinct_shapes(),
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
    """Returns the mean distinct forms of a step, and their ratio to a random draw.

    The random draw is from the whole epoch. Steps that have one form each therefore
    count as poorly mixed, even if the form changes from step to step.
    """
    forms = list(dict.fromkeys(b.form for b in buckets))
    of_form = np.zeros((len(buckets), len(forms)), np.int64)
    for i, bucket in enumerate(buckets):
        of_form[i, forms.index(bucket.form)] = 1
    by_step = counts.sum(axis=1) @ of_form
    distinct = float((by_step > 0).sum(axis=1).mean())
    draws = float(by_step.sum(axis=1).mean())
    return distinct, distinct / expected_distinct(epoch_counts @ of_form, draws)
