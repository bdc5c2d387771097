"""The planner: makes a plan from samples, costs and memory."""

import dataclasses

from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.balance.memory import Limit
from jaxload.balance.pattern import Deal
from jaxload.balance.scenario import (
    Scenario,
    batches_by_rule,
    deal_buckets,
    deal_buckets_again,
    deal_of,
)
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.comparison import predicted_idle, searching_deal
from jaxload.planning.memory import Memory
from jaxload.planning.model_record import as_json
from jaxload.planning.plan import Plan
from jaxload.planning.samples import Samples
from jaxload.shapes.cover import LeftOut
from jaxload.shapes.shape import Shape

_MAX_CONFIRMATIONS = 4
UNKNOWN = "shape that the plan does not have"
TOO_FEW = "fewer samples than the smallest micro-batch for each replica"


class Planner:
    """Chooses the programs of a run and deals its samples over them."""

    def __init__(
        self,
        config: Config,
        samples: Samples,
        costs: CostModel,
        memory: Memory,
        mesh: MeshConfig,
        *,
        num_replicas: int,
        target: str,
        console: Console | None = None,
    ):
        """Prepares to plan a run.

        Args:
            config: Config of the run.
            samples: Shapes and their numbers of samples.
            costs: Cost model.
            memory: Memory budget that programs stay within.
            mesh: Sizes of the mesh, with the number of groups.
            num_replicas: Number of logical replicas; usually the number of groups.
            target: Name of the type of device.
            console: Shows the progress of searches; None shows none.
        """
        self._config = config
        self._samples = samples
        self._costs = costs
        self._memory = memory
        self._mesh = mesh
        self._num_replicas = num_replicas
        self._target = target
        self._console = console or Console(quiet=True)

    def plan(self, *, simulate: bool = False) -> Plan:
        """Returns the plan, with the memory of each of its programs.

        Programs stay within the memory budget. A shape whose smallest batch already
        exceeds the budget is marked as over budget.

        Args:
            simulate: Whether to simulate some steps of every policy for comparison.
        """
        self._memory.prepare(self._samples.cover.shapes)
        for _ in range(_MAX_CONFIRMATIONS):
            scenario = self._scenario()
            plan = self._draft(scenario)
            buckets = self._memory.confirm(plan.buckets)
            if buckets is not None:
                plan = dataclasses.replace(plan, buckets=buckets)
                shares = {}
                if simulate:
                    shares = predicted_idle(scenario, plan, self._console)
                return dataclasses.replace(plan, idle_shares=shares)
        raise InputError(
            f"no batch sizes found within {self._memory.source} in "
            f"{_MAX_CONFIRMATIONS} rounds of compiling; raise balance.max_bytes, or "
            "set model.remat=full"
        )

    def _scenario(self) -> Scenario:
        return Scenario(
            cover=self._samples.cover,
            config=self._config.balance,
            cost_model=self._costs,
            limit=self._memory.limit,
            num_replicas=self._num_replicas,
            accumulate=self._config.train.accumulate,
            seed=self._config.train.seed,
        )

    def _draft(self, scenario: Scenario) -> Plan:
        config, deal = scenario.config, None
        if config.policy == "mixed":
            with searching_deal(self._console) as advance:
                deal = deal_of(scenario, advance)
            buckets, budget = deal_buckets(deal, scenario), deal.budget
            how = "by the deal, so that all replicas of a step finish together"
        else:
            catalogue = batches_by_rule(scenario, config.rule, together=True)
            buckets, budget = catalogue.buckets, catalogue.budget
            how = f"by the rule {config.rule}"
            if catalogue.exponent:
                how += f", p = {catalogue.exponent:.3f}"
        given = "given" if config.max_compute_tokens else "searched"
        prepared = "prepared shapes with the most content"
        rules = self._samples.rules
        return Plan(
            buckets=buckets,
            patterns=deal.patterns if deal else (),
            rest=deal.rest if deal else (),
            left_out=scenario.cover.left_out,
            kept_content=scenario.cover.kept,
            budget=budget,
            cost_model=scenario.cost_model,
            config=config,
            rules=rules,
            num_replicas=scenario.num_replicas,
            accumulate=scenario.accumulate,
            mesh=self._mesh,
            model=as_json(self._config.model),
            target=self._target,
            dataset=self._samples.dataset,
            sources={
                "shapes": "chosen to keep the most content" if rules else prepared,
                "batch": how,
                "budget": given if budget else "none: the rule is equal-token",
                "cost": scenario.cost_model.source,
                "memory": self._memory.source,
            },
        )


def apply_plan(plan: Plan, samples: Samples) -> Plan:
    """Returns a plan for another dataset: the same programs, costs and budgets.

    Samples are dealt anew, unless each shape has as many as in the plan. A shape with
    too few samples for the plan's batch gets a smaller batch. If the samples cannot
    fill the smallest batch, the shape is left out and its samples are counted.

    Args:
        plan: Plan read from a file.
        samples: Samples of the dataset, of any shapes.
    """
    counts = dict(zip(samples.cover.shapes, samples.cover.num_samples, strict=True))
    buckets = _refill(plan, counts)
    if not buckets:
        raise InputError(
            f"the plan has none of the dataset's shapes with enough samples: the plan "
            f"has {', '.join(map(str, plan.buckets))}, the dataset has "
            f"{', '.join(f'{shape} ({n})' for shape, n in counts.items())}; plan again "
            "for this dataset"
        )
    changed = dataclasses.replace(
        plan,
        buckets=buckets,
        left_out=(*samples.cover.left_out, *_left_out(plan, buckets, counts)),
        dataset=samples.dataset,
        rules=None,
        idle_shares={},
    )
    if plan.config.policy == "lockstep" or changed.buckets == plan.buckets:
        return changed
    return _dealt_again(changed, samples)


def _refill(plan: Plan, counts: dict[Shape, int]) -> tuple[Bucket, ...]:
    """Returns the buckets with enough samples, with smaller batches if necessary."""
    needed = plan.num_replicas if plan.config.policy == "lockstep" else 1
    smallest: dict[Shape, int] = {}
    for bucket in plan.buckets:
        smallest[bucket.shape] = min(
            bucket.batch, smallest.get(bucket.shape, bucket.batch)
        )
    filled = []
    for bucket in plan.buckets:
        count, batch = counts.get(bucket.shape, 0), bucket.batch
        if count < batch * needed and batch == smallest[bucket.shape]:
            unit = bucket.program.layout.smallest_batch(plan.config.batch_multiple)
            batch = count // needed // unit * unit
        if batch and count >= batch * needed:
            filled.append(_resized(bucket, batch, count, plan))
    return tuple(filled)


def _resized(bucket: Bucket, batch: int, num_samples: int, plan: Plan) -> Bucket:
    bucket = dataclasses.replace(bucket, num_samples=num_samples)
    if batch == bucket.batch:
        return bucket
    program = bucket.program.resized(batch)
    # The bytes of the smaller batch are not known, but below those of the larger one.
    return dataclasses.replace(
        bucket, program=program, cost=plan.cost_model(program), num_bytes=0
    )


def _left_out(
    plan: Plan, buckets: tuple[Bucket, ...], counts: dict[Shape, int]
) -> list[LeftOut]:
    """Counts the samples that no bucket takes, by reason."""
    planned = {bucket.shape for bucket in plan.buckets}
    kept = {bucket.shape for bucket in buckets}
    unknown = [shape for shape in counts if shape not in planned]
    rare = [shape for shape in counts if shape in planned - kept]
    return [
        LeftOut(
            reason=reason,
            count=sum(counts[shape] for shape in shapes),
            examples=tuple(f"{shape} ({counts[shape]})" for shape in shapes[:3]),
        )
        for reason, shapes in ((UNKNOWN, unknown), (TOO_FEW, rare))
        if shapes
    ]


def _dealt_again(plan: Plan, samples: Samples) -> Plan:
    planned = {bucket.shape for bucket in plan.buckets}
    shapes = [shape for shape in samples.cover.shapes if shape in planned]
    counts = dict(zip(samples.cover.shapes, samples.cover.num_samples, strict=True))
    cover = dataclasses.replace(
        samples.cover,
        shapes=tuple(shapes),
        num_samples=tuple(counts[shape] for shape in shapes),
    )
    scenario = Scenario(
        cover=cover,
        config=plan.config,
        cost_model=plan.cost_model,
        limit=lambda shape: _planned_limit(plan, shape),
        num_replicas=plan.num_replicas,
        accumulate=plan.accumulate,
    )
    deal = deal_buckets_again(scenario, plan.buckets, plan.budget)
    buckets = _match(deal, deal_buckets(deal, scenario), plan.buckets)
    return dataclasses.replace(
        plan, buckets=buckets, patterns=deal.patterns, rest=deal.rest
    )


def _planned_limit(plan: Plan, shape: Shape) -> Limit:
    """Returns the plan's largest program for a shape."""
    programs = [b.program for b in plan.buckets if b.shape == shape]
    largest = max(programs, key=lambda program: program.batch)
    unit = largest.layout.smallest_batch(plan.config.batch_multiple)
    return Limit(program=largest, within_budget=True, unit=unit)


def _match(
    deal: Deal, dealt: tuple[Bucket, ...], planned: tuple[Bucket, ...]
) -> tuple[Bucket, ...]:
    """Returns the planned buckets in the order of a deal's options."""
    by_size = {(b.shape, b.batch): b for b in planned}
    assert len(dealt) == len(deal.options)
    return tuple(by_size[b.shape, b.batch] for b in dealt)
