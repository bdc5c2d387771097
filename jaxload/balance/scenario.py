"""A setting: samples, costs, budgets and replicas, and the schedules that they give."""

import dataclasses

from jaxload.balance.batch_sizes import (
    BalanceConfig,
    Catalogue,
    MaxBatch,
    Rule,
    choose_batches,
)
from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.balance.deal import Load, make_deal
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Deal
from jaxload.balance.schedule import Lockstep
from jaxload.errors import InputError
from jaxload.shapes.cover import Cover


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What a plan is made from, and policies are compared on."""

    cover: Cover
    config: BalanceConfig
    cost_model: CostModel
    max_batch: MaxBatch
    num_replicas: int
    accumulate: int
    seed: int = 0

    def __post_init__(self):
        num_samples = sum(self.cover.num_samples)
        if num_samples < self.num_replicas:
            raise InputError(
                f"{num_samples} samples for {self.num_replicas} replicas: expected at "
                "least one for each; use fewer replicas, or more data"
            )


def batches_by_rule(
    setting: Setting, rule: Rule, *, together: bool = False
) -> Catalogue:
    """One bucket for each shape, by a rule; see `choose_batches`."""
    return choose_batches(
        setting.cover.shapes,
        setting.cover.num_samples,
        config=dataclasses.replace(setting.config, rule=rule),
        cost_model=setting.cost_model,
        max_batch=setting.max_batch,
        num_replicas=setting.num_replicas,
        together=together,
    )


def deal_of(setting: Setting) -> Deal:
    """Deals the samples of a setting."""
    config, cost_model = setting.config, setting.cost_model
    budget = 0.0
    if config.max_compute_tokens:
        budget = cost_model(1, config.max_compute_tokens)
    return make_deal(
        [
            Load(
                num_samples=n,
                cost=float(cost_model.sample(shape.tokens)),
                max_batch=max(1, setting.max_batch(shape)),
            )
            for shape, n in zip(
                setting.cover.shapes, setting.cover.num_samples, strict=True
            )
        ],
        fixed=cost_model.fixed,
        accumulate=setting.accumulate,
        num_replicas=setting.num_replicas,
        max_programs=config.max_programs or 2 * config.max_buckets,
        budget=float(budget),
    )


def deal_buckets(deal: Deal, setting: Setting) -> tuple[Bucket, ...]:
    """The programs of a deal."""
    cover = setting.cover
    buckets = []
    for program in deal.programs:
        shape = cover.shapes[program.shape]
        cost = float(setting.cost_model(program.batch, shape.tokens))
        buckets.append(
            Bucket(
                shape=shape,
                batch=program.batch,
                num_samples=cover.num_samples[program.shape],
                cost=cost,
                over_budget=setting.max_batch(shape) < 1
                or cost > deal.budget * setting.accumulate * (1 + 1e-3),
            )
        )
    return tuple(buckets)


def can_lockstep(setting: Setting) -> bool:
    """Whether any shape has a sample for each replica."""
    return max(setting.cover.num_samples) >= setting.num_replicas


def make_lockstep(setting: Setting) -> Lockstep:
    """The lockstep schedule, of the shapes that have a sample for each replica."""
    buckets = batches_by_rule(setting, setting.config.rule, together=True).buckets
    enough = [b for b in buckets if b.num_samples >= b.batch * setting.num_replicas]
    if not enough:
        raise InputError(
            f"no shape has {setting.num_replicas} samples, one for each replica of a "
            "lockstep; use fewer replicas, or the mixed policy"
        )
    return Lockstep(
        buckets=tuple(enough),
        seed=setting.seed,
        num_replicas=setting.num_replicas,
        accumulate=setting.accumulate,
    )


def make_mixed(setting: Setting) -> Mixed:
    """The mixed schedule."""
    deal = deal_of(setting)
    return Mixed(
        buckets=deal_buckets(deal, setting),
        patterns=deal.patterns,
        rest=deal.rest,
        seed=setting.seed,
        num_replicas=setting.num_replicas,
    )
