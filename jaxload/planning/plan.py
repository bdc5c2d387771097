"""The plan: catalogue, deal, budgets and the source of each number, stored as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from jaxload.balance.bucket import Bucket
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Grid
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Pattern
from jaxload.balance.program import REMATS, Layout, Program
from jaxload.balance.sample_class import Lengths
from jaxload.balance.schedule import Lockstep
from jaxload.config import section_from_dict
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.plan_limits import (
    MAX_MICRO_BATCHES,
    MAX_REPLICAS,
    MAX_SAMPLES,
    MAX_SIZE,
    check_batch,
    check_buckets,
    check_costs,
    check_geometry_sizes,
    check_number,
    check_patterns,
)
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import LeftOut
from jaxload.shapes.geometry import Geometry

_FORMAT = 4

_Row = TypeVar("_Row")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Programs, deal and budgets of a run, fixed before its first step."""

    buckets: tuple[Bucket, ...]
    patterns: tuple[Pattern, ...] = ()
    """Patterns of the mixed policy, with how often an epoch uses each."""

    rest: tuple[Pattern, ...] = ()
    """Patterns of the mixed policy that an epoch uses once."""

    sizes: tuple[tuple[int, int], ...]
    """Heights and widths of the samples' latents, to which `prepare` resizes media."""

    left_out: tuple[LeftOut, ...]
    num_cut: int
    """Number of samples that run only by their first latent frames."""

    kept_content: float
    """Content kept, as a share of the content that all candidate sizes would keep."""

    budget: float
    """Compute budget of a micro-batch, in the unit of the cost model; 0 for the rule
    `equal-token`, and in tokens^p for lockstep by the rule `dual`."""

    cost_model: CostModel
    config: BalanceConfig
    rules: ShapeRules | None
    """Rules that assigned samples to shapes; None: samples were already prepared."""

    num_replicas: int
    """Number of logical replicas of the schedule."""

    accumulate: int
    mesh: MeshConfig
    """Mesh that the budgets are for: sizes of a group, and the number of groups."""

    model: Mapping[str, Any]
    """Config of the model, as JSON; another model needs another plan."""

    target: str
    """Type of device that the programs were planned for."""

    dataset: str
    """Digest of the dataset, or of the list of samples."""

    sources: Mapping[str, str]
    """Origin of the shapes, batches, budget, costs and memory, as text by name."""

    idle_shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Simulated idle share of each policy on the same shapes; may be empty."""

    @property
    def geometry(self) -> Geometry:
        """Geometry of the codec and the model that the plan was made for."""
        return self.buckets[0].form.geometry

    def schedule(self, seed: int) -> Lockstep | Mixed:
        """Returns the schedule of the plan's policy."""
        if self.config.policy == "lockstep":
            return Lockstep(
                buckets=self.buckets,
                seed=seed,
                num_replicas=self.num_replicas,
                accumulate=self.accumulate,
            )
        return Mixed(
            buckets=self.buckets,
            patterns=self.patterns,
            rest=self.rest,
            seed=seed,
            num_replicas=self.num_replicas,
        )

    def work_shares(self) -> list[float]:
        """Returns the share of an epoch's planned cost of each of the `buckets`."""
        samples = self._samples()
        work = [
            b.cost * n / b.batch for b, n in zip(self.buckets, samples, strict=True)
        ]
        return [w / sum(work) for w in work]

    def _samples(self) -> list[float]:
        """Returns the number of samples that each bucket runs in an epoch."""
        if not self.patterns and not self.rest:
            return [float(b.num_samples) for b in self.buckets]
        return [
            float(b.batch * sum(p.times * p.counts[i] for p in self._all_patterns()))
            for i, b in enumerate(self.buckets)
        ]

    def _all_patterns(self) -> tuple[Pattern, ...]:
        return (*self.patterns, *self.rest)


def to_json(plan: Plan) -> str:
    """Returns a plan as JSON text, from which `from_dict` builds an equal plan."""
    content = {
        "format": _FORMAT,
        "dataset": plan.dataset,
        "num_replicas": plan.num_replicas,
        "accumulate": plan.accumulate,
        "mesh": dataclasses.asdict(plan.mesh),
        "model": dict(plan.model),
        "target": plan.target,
        "balance": dataclasses.asdict(plan.config),
        "shapes": None if plan.rules is None else dataclasses.asdict(plan.rules),
        "budget": plan.budget,
        "cost_model": dataclasses.asdict(plan.cost_model),
        "sources": dict(plan.sources),
        "buckets": [_bucket_row(bucket) for bucket in plan.buckets],
        "patterns": [dataclasses.asdict(p) for p in plan.patterns],
        "rest": [dataclasses.asdict(p) for p in plan.rest],
        "sizes": [{"height": height, "width": width} for height, width in plan.sizes],
        "kept_content": plan.kept_content,
        "num_cut": plan.num_cut,
        "left_out": [dataclasses.asdict(left_out) for left_out in plan.left_out],
        "idle_shares": dict(plan.idle_shares),
    }
    return json.dumps(content, indent=2) + "\n"


def from_dict(
    content: Mapping[str, Any],
    *,
    name: str,
    remedy: str = "plan again with this version",
) -> Plan:
    """Builds a plan from parsed JSON.

    Error messages start with the plan's `name` and end with the `remedy`.
    """
    if content.get("format") != _FORMAT:
        raise InputError(
            f"{name}: expected plan format {_FORMAT}, got "
            f"{content.get('format')!r:.80}; "
            f"{remedy}"
        )
    try:
        plan = _parse(content)
        _check(plan)
    except InputError as error:
        raise InputError(f"{name}: {error}; {remedy}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{name}: not a plan ({error!r:.200}); {remedy}") from error
    return plan


def _parse(content: Mapping[str, Any]) -> Plan:
    """Builds a plan of values of the right types, not all of which may be valid."""
    scalars = {
        field.name: content[field.name] for field in dataclasses.fields(_Scalars)
    }
    rules = content["shapes"]
    return Plan(
        buckets=tuple(
            _bucket(row, f"buckets.{i}") for i, row in enumerate(content["buckets"])
        ),
        patterns=_rows(Pattern, content, "patterns"),
        rest=_rows(Pattern, content, "rest"),
        sizes=tuple(
            (size.height, size.width) for size in _rows(_SizeRow, content, "sizes")
        ),
        left_out=_rows(LeftOut, content, "left_out"),
        cost_model=_cost_model(content["cost_model"]),
        config=section_from_dict(BalanceConfig, content["balance"], "balance"),
        rules=rules and section_from_dict(ShapeRules, rules, "shapes"),
        mesh=section_from_dict(MeshConfig, content["mesh"], "mesh"),
        model=dict(content["model"].items()),
        sources=section_from_dict(_Sources, content["sources"], "sources").texts(),
        idle_shares={
            policy: section_from_dict(_Idle, {"share": share}, "idle_shares").share
            for policy, share in content["idle_shares"].items()
        },
        **vars(section_from_dict(_Scalars, scalars, "")),
    )


def _check(plan: Plan) -> None:
    """Refuses invalid numbers, since the file may have been edited by hand."""
    check_number("num_replicas", plan.num_replicas, 1, MAX_REPLICAS)
    check_number("accumulate", plan.accumulate, 1, MAX_MICRO_BATCHES)
    check_number("num_cut", plan.num_cut, 0, MAX_SAMPLES)
    for i, size in enumerate(plan.sizes):
        for value in size:
            check_number(f"sizes.{i}", value, 1, MAX_SIZE)
    if not plan.buckets:
        raise InputError("buckets: expected one or more, got none")
    if any(bucket.form.geometry != plan.geometry for bucket in plan.buckets):
        raise InputError("buckets: expected one geometry, got several")
    if any(bucket.program.layout != plan.mesh.layout for bucket in plan.buckets):
        raise InputError(
            f"buckets: expected the layout {plan.mesh.layout} of mesh.fsdp="
            f"{plan.mesh.fsdp}, got another"
        )
    if plan.rules is not None:
        plan.rules.check(plan.geometry)
    policy = plan.config.policy
    check_buckets(plan.buckets, policy=policy)
    check_costs(
        plan.cost_model,
        plan.buckets,
        budget=plan.budget,
        accumulate=plan.accumulate,
        policy=policy,
    )
    patterns = (*plan.patterns, *plan.rest)
    if (policy == "mixed") != bool(patterns):
        raise InputError(
            f"balance.policy={policy}: expected patterns only for mixed, got "
            f"{len(patterns)}"
        )
    check_patterns(
        plan.patterns, plan.rest, plan.buckets, num_replicas=plan.num_replicas
    )
    plan.schedule(seed=0)  # Refuses too few samples for the replicas.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Scalars:
    """Fields of a plan that its file has as they are."""

    num_cut: int
    kept_content: float
    budget: float
    num_replicas: int
    accumulate: int
    target: str
    dataset: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sources:
    """Object `sources` of the file."""

    shapes: str
    batch: str
    budget: str
    cost: str
    memory: str

    def texts(self) -> dict[str, str]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SizeRow:
    """Row of `sizes`."""

    height: int
    width: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Idle:
    """One value of the object `idle_shares` of the file."""

    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GeometryRow:
    """Object `geometry` of a program, which the default geometry leaves out."""

    strides: tuple[int, ...]
    patch: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ProgramRow:
    """Object `program` of a bucket."""

    form: str
    batch: int
    layout: Layout
    remat: str
    geometry: _GeometryRow | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BucketRow:
    """Row of `buckets`, without the fields that follow from the program."""

    program: _ProgramRow
    num_samples: int
    lengths: Lengths
    cost: float
    over_budget: bool = False
    num_bytes: int = 0


def _rows(
    section: type[_Row], content: Mapping[str, Any], name: str
) -> tuple[_Row, ...]:
    return tuple(
        section_from_dict(section, row, f"{name}.{i}")
        for i, row in enumerate(content[name])
    )


def _bucket_row(bucket: Bucket) -> dict:
    row = {f.name: getattr(bucket, f.name) for f in dataclasses.fields(bucket)}
    pixels = {}
    if isinstance(bucket.form, Grid):
        pixels = {"pixels": "x".join(map(str, bucket.form.shape.pixels))}
    return (
        row
        | pixels
        | {
            "program": bucket.program.to_dict(),
            "tokens": bucket.tokens,
            "lengths": dataclasses.asdict(bucket.lengths),
        }
    )


def _bucket(content: Mapping[str, Any], path: str) -> Bucket:
    derived = ("tokens", "pixels")  # For readers of the file.
    fields = {name: value for name, value in content.items() if name not in derived}
    row = section_from_dict(_BucketRow, fields, path)
    check_batch(f"{path}.program", row.program.batch)
    program = Program.from_dict(content["program"])
    check_geometry_sizes(f"{path}.program", program.form.geometry)
    return Bucket(**{**vars(row), "program": program})


def _cost_model(content: Mapping[str, Any]) -> CostModel:
    laws = content["laws"]
    if not laws or not set(laws) <= set(REMATS):
        raise InputError(
            f"cost_model.laws: expected some of {', '.join(REMATS)}, got "
            f"{[*laws]!r:.80}"
        )
    text = {name: content[name] for name in ("unit", "source", "skips_padding")}
    named = section_from_dict(_CostNames, text, "cost_model")
    return CostModel(
        laws={
            remat: section_from_dict(CostLaw, laws[remat], f"cost_model.laws.{remat}")
            for remat in laws
        },
        **vars(named),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CostNames:
    """Fields of the object `cost_model` of the file besides its laws."""

    unit: str
    source: str
    skips_padding: bool
