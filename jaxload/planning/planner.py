"""The planner: makes a plan from samples, costs and memory."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxload.balance.batch_sizes import check_memory
from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.balance.form import Form, Length
from jaxload.balance.memory import Limit
from jaxload.balance.pattern import Deal
from jaxload.balance.sample_class import SampleClass, assign_forms, make_classes
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
from jaxload.planning.classes import (
    Classes,
    classes_by_grid,
    classes_by_length,
    classes_of,
    shortest_run,
)
from jaxload.planning.comparison import predicted_idle, searching_deal
from jaxload.planning.form_choice import form_of
from jaxload.planning.memory import Memory
from jaxload.planning.model_record import as_json
from jaxload.planning.plan import Plan
from jaxload.planning.samples import Samples, fewest_samples
from jaxload.shapes.shape import Shape

_MAX_CONFIRMATIONS = 4
UNKNOWN = "shape that the plan has no program for"
TOO_LONG_FOR_PLAN = "longer than any program of the plan"
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

        Programs stay within the memory budget. By length, samples that exceed it are
        cut or left out. By grid, a shape whose smallest batch exceeds it is marked as
        over budget.

        Args:
            simulate: Whether to simulate some steps of every policy for comparison.
        """
        for _ in range(_MAX_CONFIRMATIONS):
            chosen = self._choose_classes()
            scenario = self._scenario(chosen)
            plan = self._draft(scenario, chosen)
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

    def _choose_classes(self) -> Classes:
        """Chooses forms within the memory budget, and prepares the memory for them."""
        config, layout = self._config.balance, self._mesh.layout
        fewest = fewest_samples(config, layout, self._num_replicas)
        if form_of(self._config) == "grid":
            chosen = classes_by_grid(self._samples, config, min_samples=fewest)
        else:
            chosen = classes_by_length(
                self._samples,
                config,
                self._costs,
                num_devices=self._num_replicas * layout.batch,
                min_samples=fewest,
                longest_row=self._longest_row(),
                multiple=self._mesh.fsdp,
            )
        self._memory.prepare([samples.form for samples in chosen.classes])
        return chosen

    def _longest_row(self) -> int:
        """Returns the most tokens of a row within the memory budget."""
        samples = self._samples
        shortest = shortest_run(samples)
        tokens = max(shape.tokens for shape in samples.cover.shapes)
        ends = [Length(n, samples.geometry) for n in (shortest, tokens)]
        self._memory.prepare(ends)
        longest = self._memory.longest_row()
        if longest < shortest:
            limit = self._memory.limit(ends[0])
            limit = dataclasses.replace(limit, within_budget=False)
            check_memory([limit], self._config.balance)
        return longest

    def _scenario(self, chosen: Classes) -> Scenario:
        return Scenario(
            classes=chosen.classes,
            config=self._config.balance,
            cost_model=self._costs,
            limit=self._memory.limit,
            num_replicas=self._num_replicas,
            accumulate=self._config.train.accumulate,
            seed=self._config.train.seed,
        )

    def _draft(self, scenario: Scenario, chosen: Classes) -> Plan:
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
        rules = self._samples.rules
        sizes = {shape.size for shape in self._samples.cover.shapes}
        return Plan(
            buckets=buckets,
            patterns=deal.patterns if deal else (),
            rest=deal.rest if deal else (),
            sizes=tuple(sorted(sizes)),
            left_out=chosen.left_out,
            num_cut=chosen.num_cut,
            kept_content=chosen.kept,
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
                "shapes": "sizes that keep the most content" if rules else "prepared",
                "batch": how,
                "budget": given if budget else "none: the rule is equal-token",
                "cost": scenario.cost_model.source,
                "memory": self._memory.source,
            },
        )


def apply_plan(plan: Plan, samples: Samples) -> Plan:
    """Returns a plan for another dataset: the same programs, costs and budgets.

    Samples are dealt anew, unless each form has as many as in the plan. A form with too
    few samples for the plan's batch gets a smaller batch. If the samples cannot fill
    the smallest batch, they are padded to the next length, or cut, or else left out.

    Args:
        plan: Plan read from a file.
        samples: Samples of the dataset, of any shapes.
    """
    forms, classes = _served_forms(plan, samples)
    if not forms:
        raise InputError(
            f"the plan has none of the dataset's shapes with enough samples: the plan "
            f"has {', '.join(map(str, plan.buckets))}, the dataset has "
            f"{', '.join(f'{shape} ({n})' for shape, n in samples.counts.items())}; "
            "plan again for this dataset"
        )
    chosen = classes_of(samples, forms, left_out=_missing(plan, samples, forms))
    changed = dataclasses.replace(
        plan,
        buckets=_refill(plan, classes),
        left_out=chosen.left_out,
        num_cut=chosen.num_cut,
        kept_content=chosen.kept,
        dataset=samples.dataset,
        rules=None,
        idle_shares={},
    )
    if plan.config.policy == "lockstep" or changed.buckets == plan.buckets:
        return changed
    return _dealt_again(changed, [classes[form] for form in forms])


def _served_forms(
    plan: Plan, samples: Samples
) -> tuple[list[Form], dict[Form, SampleClass]]:
    """Returns the forms that get enough samples, ascending, and their samples.

    The samples of a form with too few of them go to other forms, if any takes them.
    """
    unit = plan.mesh.layout.smallest_batch(plan.config.batch_multiple)
    needed = unit * _num_at_once(plan)
    forms = sorted(_forms(plan), key=lambda form: form.tokens)
    while True:
        found = make_classes(samples.counts, forms, may_cut=samples.may_cut)
        classes = {c.form: c for c in found if c is not None}
        starved = [
            form
            for form in forms
            if form not in classes or classes[form].num_samples < needed
        ]
        if not starved:
            return forms, classes
        forms.remove(starved[0])  # One by one, because others may then have enough.


def _forms(plan: Plan) -> list[Form]:
    return list(dict.fromkeys(bucket.form for bucket in plan.buckets))


def _num_at_once(plan: Plan) -> int:
    """Returns the number of micro-batches that run at once with one bucket."""
    return plan.num_replicas if plan.config.policy == "lockstep" else 1


def _missing(
    plan: Plan, samples: Samples, forms: Sequence[Form]
) -> list[tuple[str, list[Shape]]]:
    """Returns the shapes that none of the forms takes, by reason."""
    counts, may_cut = samples.counts, samples.may_cut
    taken = assign_forms(counts, forms, may_cut=may_cut)
    planned = assign_forms(counts, _forms(plan), may_cut=may_cut)
    unknown = [shape for shape in counts if shape not in planned]
    rare = [shape for shape in planned if shape not in taken]
    is_long = isinstance(forms[0], Length)
    return [(TOO_LONG_FOR_PLAN if is_long else UNKNOWN, unknown), (TOO_FEW, rare)]


def _refill(plan: Plan, classes: Mapping[Form, SampleClass]) -> tuple[Bucket, ...]:
    """Returns the buckets with enough samples, with smaller batches if necessary."""
    needed = _num_at_once(plan)
    smallest: dict[Form, int] = {}
    for bucket in plan.buckets:
        smallest[bucket.form] = min(
            bucket.batch, smallest.get(bucket.form, bucket.batch)
        )
    filled = []
    for bucket in plan.buckets:
        samples, batch = classes.get(bucket.form), bucket.batch
        count = samples.num_samples if samples else 0
        if count < batch * needed and batch == smallest[bucket.form]:
            unit = bucket.program.layout.smallest_batch(plan.config.batch_multiple)
            batch = count // needed // unit * unit
        if samples and batch and count >= batch * needed:
            filled.append(_refilled(bucket, batch, samples, plan))
    return tuple(filled)


def _refilled(bucket: Bucket, batch: int, samples: SampleClass, plan: Plan) -> Bucket:
    """Returns a bucket with other samples, and perhaps another batch size."""
    lengths = samples.lengths
    bucket = dataclasses.replace(
        bucket,
        num_samples=samples.num_samples,
        # The bytes of a smaller batch are not known, but below those of a larger one.
        num_bytes=bucket.num_bytes if batch == bucket.batch else 0,
    )
    if batch == bucket.batch and lengths == bucket.lengths:
        return bucket
    program = bucket.program.resized(batch)
    cost = plan.cost_model(program, lengths.mean)
    return dataclasses.replace(bucket, program=program, lengths=lengths, cost=cost)


def _dealt_again(plan: Plan, classes: Sequence[SampleClass]) -> Plan:
    scenario = Scenario(
        classes=tuple(classes),
        config=plan.config,
        cost_model=plan.cost_model,
        limit=lambda form: _planned_limit(plan, form),
        num_replicas=plan.num_replicas,
        accumulate=plan.accumulate,
    )
    deal = deal_buckets_again(scenario, plan.buckets, plan.budget)
    buckets = _match(deal, deal_buckets(deal, scenario), plan.buckets)
    return dataclasses.replace(
        plan, buckets=buckets, patterns=deal.patterns, rest=deal.rest
    )


def _planned_limit(plan: Plan, form: Form) -> Limit:
    """Returns the plan's largest program of a form."""
    programs = [b.program for b in plan.buckets if b.form == form]
    largest = max(programs, key=lambda program: program.batch)
    unit = largest.layout.smallest_batch(plan.config.batch_multiple)
    return Limit(program=largest, within_budget=True, unit=unit)


def _match(
    deal: Deal, dealt: tuple[Bucket, ...], planned: tuple[Bucket, ...]
) -> tuple[Bucket, ...]:
    """Returns the planned buckets in the order of a deal's options."""
    by_size = {(b.form, b.batch): b for b in planned}
    assert len(dealt) == len(deal.options)
    return tuple(by_size[b.form, b.batch] for b in dealt)
