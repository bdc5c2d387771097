"""Scenarios (samples, costs, budgets, replicas) and the schedules built from them."""

import dataclasses
from collections.abc import Callable

from jaxload.balance.batch_sizes import Catalogue, choose_batches
from jaxload.balance.bucket import Bucket
from jaxload.balance.config import BalanceConfig, Rule
from jaxload.balance.cost import CostModel
from jaxload.balance.deal import deal_again, make_deal
from jaxload.balance.form import Form
from jaxload.balance.memory import Limit
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import BatchOption, Deal
from jaxload.balance.sample_class import SampleClass
from jaxload.balance.schedule import Lockstep
from jaxload.balance.supply import Supply
from jaxload.errors import InputError

MaxProgram = Callable[[Form], Limit]
"""Function from a form to its largest program within the memory budget."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """Inputs of a plan, and of a comparison of policies."""

    classes: tuple[SampleClass, ...]
    """Samples of each form, by ascending tokens."""

    config: BalanceConfig
    cost_model: CostModel
    limit: MaxProgram
    num_replicas: int
    accumulate: int
    seed: int = 0

    def __post_init__(self):
        num_samples = sum(c.num_samples for c in self.classes)
        if num_samples < self.num_replicas:
            raise InputError(
                f"{num_samples} samples for {self.num_replicas} replicas: expected at "
                "least one for each; use fewer replicas, or more data"
            )

    def limits(self) -> list[Limit]:
        """Returns the largest program of each class within the memory budget."""
        return [self.limit(c.form) for c in self.classes]


def batches_by_rule(
    scenario: Scenario, rule: Rule, *, together: bool = False
) -> Catalogue:
    """Returns one bucket for each class, with batch sizes from `choose_batches`."""
    return choose_batches(
        scenario.classes,
        scenario.limits(),
        config=dataclasses.replace(scenario.config, rule=rule),
        cost_model=scenario.cost_model,
        num_replicas=scenario.num_replicas,
        together=together,
    )


def deal_of(scenario: Scenario, on_attempt: Callable[[], None] = lambda: None) -> Deal:
    """Chooses batch sizes and deals the samples of a scenario.

    `on_attempt` is called after each attempt of the search, to show its progress.
    """
    config, cost_model = scenario.config, scenario.cost_model
    budget = 0.0
    if config.max_compute_tokens:
        law = cost_model.laws[scenario.limits()[-1].program.remat]
        budget = float(law(1, config.max_compute_tokens))
    return make_deal(
        _supplies(scenario),
        fixed=cost_model.fixed,
        accumulate=scenario.accumulate,
        num_replicas=scenario.num_replicas,
        max_programs=config.max_programs or 2 * config.max_buckets,
        budget=budget,
        on_attempt=on_attempt,
    )


def deal_buckets_again(
    scenario: Scenario, buckets: tuple[Bucket, ...], budget: float
) -> Deal:
    """Makes a deal of a scenario's samples, with the batch sizes of given buckets.

    Args:
        scenario: Samples, costs and replicas.
        buckets: Buckets of an earlier deal, whose programs are kept.
        budget: Cost limit for what one replica runs in one step.
    """
    forms = [c.form for c in scenario.classes]
    return deal_again(
        _supplies(scenario),
        [BatchOption(form=forms.index(b.form), batch=b.batch) for b in buckets],
        fixed=scenario.cost_model.fixed,
        accumulate=scenario.accumulate,
        num_replicas=scenario.num_replicas,
        budget=budget,
    )


def deal_buckets(deal: Deal, scenario: Scenario) -> tuple[Bucket, ...]:
    """Returns the buckets of a deal, in the order of its options."""
    limits = scenario.limits()
    buckets = []
    for option in deal.options:
        limit, samples = limits[option.form], scenario.classes[option.form]
        program = limit.program.resized(option.batch)
        cost = scenario.cost_model(program, samples.lengths.mean)
        too_costly = cost > deal.budget * scenario.accumulate * (1 + 1e-3)
        buckets.append(
            Bucket(
                program=program,
                num_samples=samples.num_samples,
                lengths=samples.lengths,
                cost=cost,
                over_budget=not limit.within_budget or too_costly,
            )
        )
    return tuple(buckets)


def can_lockstep(scenario: Scenario) -> bool:
    """Returns whether any class has at least one sample for each replica."""
    return max(c.num_samples for c in scenario.classes) >= scenario.num_replicas


def make_lockstep(scenario: Scenario) -> Lockstep:
    """Builds the lockstep schedule of classes with a micro-batch for each replica."""
    buckets = batches_by_rule(scenario, scenario.config.rule, together=True).buckets
    enough = [b for b in buckets if b.num_samples >= b.batch * scenario.num_replicas]
    if not enough:
        raise InputError(
            f"no bucket has {scenario.num_replicas} samples, one for each replica of a "
            "lockstep; use fewer replicas, or the mixed policy"
        )
    return Lockstep(
        buckets=tuple(enough),
        seed=scenario.seed,
        num_replicas=scenario.num_replicas,
        accumulate=scenario.accumulate,
    )


def make_mixed(
    scenario: Scenario, on_attempt: Callable[[], None] = lambda: None
) -> Mixed:
    """Builds the mixed schedule of a new deal; see `deal_of`."""
    deal = deal_of(scenario, on_attempt)
    return Mixed(
        buckets=deal_buckets(deal, scenario),
        patterns=deal.patterns,
        rest=deal.rest,
        seed=scenario.seed,
        num_replicas=scenario.num_replicas,
    )


def _supplies(scenario: Scenario) -> list[Supply]:
    def supply(samples: SampleClass, limit: Limit) -> Supply:
        program = limit.program
        cost = scenario.cost_model.sample(program, samples.lengths.mean)
        return Supply(
            num_samples=samples.num_samples,
            cost=cost / program.layout.batch,
            max_batch=program.batch,
            unit=limit.unit,
        )

    return list(map(supply, scenario.classes, scenario.limits()))
