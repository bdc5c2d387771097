"""From a config and what the samples are to a plan."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from jaxload.balance.batch_sizes import BalanceConfig, MaxBatch
from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.balance.regression import CostFit
from jaxload.balance.scenario import (
    Setting,
    batches_by_rule,
    can_lockstep,
    deal_buckets,
    deal_of,
)
from jaxload.balance.simulation import POLICIES, play
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.planning.analytic_cost import cost_of
from jaxload.planning.plan import Plan
from jaxload.planning.survey import Survey
from jaxload.shapes.clips import ShapeRules
from jaxload.shapes.cover import Cover, cover, cover_exactly
from jaxload.shapes.shape import Shape

_NUM_SIMULATED_STEPS = 100
_MIN_SAMPLES = 16  # Fewer are not worth a program, whatever the number of replicas.


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """What fits into the memory of a device."""

    max_batch: MaxBatch
    num_bytes: Callable[[Shape, int], int]
    """Of a bucket's program; 0 if it is not known."""

    source: str


def token_limit(max_tokens: int) -> MemoryLimit:
    """Memory by tokens alone."""
    return MemoryLimit(
        max_batch=lambda shape: max_tokens // shape.tokens,
        num_bytes=lambda shape, batch: 0,
        source=f"{max_tokens:,} tokens in a micro-batch (balance.max_tokens)",
    )


def plan_run(
    config: Config, manifest: Manifest, memory: MemoryLimit, *, num_replicas: int
) -> Plan:
    """Plans a run on a prepared data set, by analytic cost."""
    setting = make_setting(
        config,
        cover_prepared(manifest, config.balance, num_replicas=num_replicas),
        cost_model=cost_of(config.model),
        memory=memory,
        num_replicas=num_replicas,
    )
    return make_plan(setting, memory=memory, dataset=manifest.digest(), rules=None)


def make_setting(
    config: Config,
    chosen: Cover,
    *,
    cost_model: CostModel,
    memory: MemoryLimit,
    num_replicas: int,
) -> Setting:
    """What a plan is made from, and policies are compared on."""
    return Setting(
        cover=chosen,
        config=config.balance,
        cost_model=cost_model,
        max_batch=memory.max_batch,
        num_replicas=num_replicas,
        accumulate=config.train.accumulate,
        seed=config.train.seed,
    )


def cover_prepared(
    manifest: Manifest, config: BalanceConfig, *, num_replicas: int
) -> Cover:
    """The shapes of a prepared data set that are kept."""
    counts = {shape: len(rows) for shape, rows in manifest.rows_by_shape.items()}
    return cover_exactly(
        counts,
        max_shapes=config.max_buckets,
        min_samples=_min_samples(config, num_replicas),
    )


def cover_survey(
    survey: Survey, rules: ShapeRules, config: BalanceConfig, *, num_replicas: int
) -> Cover:
    """The shapes that are chosen for what a manifest holds."""
    chosen = cover(
        survey.clips,
        rules=rules,
        max_shapes=config.max_buckets,
        min_samples=_min_samples(config, num_replicas),
    )
    return dataclasses.replace(chosen, left_out=(*survey.bad, *chosen.left_out))


def make_plan(
    setting: Setting, *, memory: MemoryLimit, dataset: str, rules: ShapeRules | None
) -> Plan:
    """Plans for shapes that are chosen already."""
    config, deal = setting.config, None
    if config.policy == "mixed":
        deal = deal_of(setting)
        buckets, budget = deal_buckets(deal, setting), deal.budget
        how = "by the deal, that all replicas of a step finish together"
    else:
        catalogue = batches_by_rule(setting, config.rule, together=True)
        buckets, budget = catalogue.buckets, catalogue.budget
        how = f"by the rule {config.rule}"
        if catalogue.exponent:
            how += f", p = {catalogue.exponent:.3f}"
    given = "given" if config.max_compute_tokens else "searched"
    prepared = "those of the prepared samples that hold the most content"
    return Plan(
        buckets=tuple(_with_bytes(bucket, memory) for bucket in buckets),
        patterns=deal.patterns if deal else (),
        rest=deal.rest if deal else (),
        left_out=setting.cover.left_out,
        kept_content=setting.cover.kept,
        budget=budget,
        cost_model=setting.cost_model,
        config=config,
        rules=rules,
        num_replicas=setting.num_replicas,
        accumulate=setting.accumulate,
        dataset=dataset,
        sources={
            "shapes": "chosen to keep the most content" if rules else prepared,
            "batch": how,
            "budget": given if budget else "none: the rule is equal-token",
            "cost": setting.cost_model.source,
            "memory": memory.source,
        },
    )


def predicted_idle(setting: Setting, plan: Plan) -> dict[str, float]:
    """What each policy would idle, by playing some steps of it."""
    shares = {}
    for policy in POLICIES:
        if policy == "lockstep" and not can_lockstep(setting):
            continue
        schedule = None
        if policy == plan.config.policy == "mixed":  # It takes a while to make.
            schedule = plan.mixed_schedule(setting.seed)
        played = play(
            policy, setting, num_steps=_NUM_SIMULATED_STEPS, schedule=schedule
        )
        shares[policy] = played.imbalance.idle_share
    return shares


def read_fit(path: Path) -> CostFit:
    """Reads what jaxload.calibrate wrote."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise InputError(
            f"fit {path}: cannot be read ({error.strerror}); make one with "
            "python -m jaxload.calibrate"
        ) from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"fit {path}: not JSON ({error}); make it again with "
            "python -m jaxload.calibrate"
        ) from error
    return CostFit.from_dict(content, name=f"fit {path}")


def survey_digest(survey: Survey) -> str:
    """A manifest's clips in a few characters; the order of rows does not matter."""
    clips = survey.clips
    digest = hashlib.sha256()
    for column in (clips.frames, clips.height, clips.width, clips.count):
        digest.update(column.astype("int64").tobytes())
    return digest.hexdigest()[:16]


def check_plan(plan: Plan, manifest: Manifest, *, num_replicas: int) -> None:
    """Refuses a plan that was made for another data set or another machine."""
    if plan.num_replicas != num_replicas:
        raise InputError(
            f"the run was planned for {plan.num_replicas} replicas, and there are "
            f"{num_replicas} devices; resume on as many, or train in another --workdir"
        )
    if plan.dataset != manifest.digest():
        raise InputError(
            f"data set {manifest.directory}: the run was planned for another "
            f"({plan.dataset}, this one is {manifest.digest()}); restore the first, or "
            "train in another --workdir"
        )


def _min_samples(config: BalanceConfig, num_replicas: int) -> int:
    """Samples that a shape needs: in lockstep, one for each replica."""
    if num_replicas < 1:
        raise InputError(f"{num_replicas} replicas: expected 1 or more")
    if config.policy == "lockstep":
        return num_replicas
    return min(num_replicas, _MIN_SAMPLES)


def _with_bytes(bucket: Bucket, memory: MemoryLimit) -> Bucket:
    num_bytes = memory.num_bytes(bucket.shape, bucket.batch)
    return dataclasses.replace(bucket, num_bytes=num_bytes)
