"""The plan: catalogue, deal, budgets and the source of each number, stored as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jaxload.balance.bucket import Bucket
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Pattern
from jaxload.balance.program import Program
from jaxload.balance.schedule import Lockstep
from jaxload.config import section_from_dict
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import LeftOut
from jaxload.shapes.geometry import Geometry

_FORMAT = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Programs, deal and budgets of a run, fixed before its first step."""

    buckets: tuple[Bucket, ...]
    patterns: tuple[Pattern, ...] = ()
    """Patterns of the mixed policy, with how often an epoch uses each."""

    rest: tuple[Pattern, ...] = ()
    """Patterns of the mixed policy that an epoch uses once."""

    left_out: tuple[LeftOut, ...]
    kept_content: float
    """Content kept, as a share of the content that all candidate shapes would keep."""

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
        return self.buckets[0].shape.geometry

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
        "kept_content": plan.kept_content,
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
            f"{name}: expected plan format {_FORMAT}, got {content.get('format')!r}; "
            f"{remedy}"
        )
    try:
        rules = content["shapes"]
        plan = Plan(
            buckets=tuple(_bucket(row) for row in content["buckets"]),
            patterns=tuple(_pattern(row) for row in content["patterns"]),
            rest=tuple(_pattern(row) for row in content["rest"]),
            left_out=tuple(
                LeftOut(**(row | {"examples": tuple(row["examples"])}))
                for row in content["left_out"]
            ),
            kept_content=content["kept_content"],
            budget=content["budget"],
            cost_model=_cost_model(content["cost_model"]),
            config=section_from_dict(BalanceConfig, content["balance"], "balance"),
            rules=rules and section_from_dict(ShapeRules, rules, "shapes"),
            num_replicas=content["num_replicas"],
            accumulate=content["accumulate"],
            mesh=section_from_dict(MeshConfig, content["mesh"], "mesh"),
            model=content["model"],
            target=content["target"],
            dataset=content["dataset"],
            sources=content["sources"],
            idle_shares=content["idle_shares"],
        )
        _check(plan)
    except InputError as error:
        raise InputError(f"{name}: {error}; {remedy}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{name}: not a plan ({error!r}); {remedy}") from error
    return plan


def _check(plan: Plan) -> None:
    """Refuses invalid numbers, since the file may have been edited by hand."""
    for field in ("num_replicas", "accumulate"):
        value = getattr(plan, field)
        if type(value) is not int or value < 1:
            raise InputError(f"{field}={value!r}: expected 1 or more")
    if not plan.buckets:
        raise InputError("buckets: expected one or more, got none")
    if any(bucket.shape.geometry != plan.geometry for bucket in plan.buckets):
        raise InputError("buckets: expected one geometry, got several")
    if plan.rules is not None:
        plan.rules.check(plan.geometry)
    patterns = (*plan.patterns, *plan.rest)
    if (plan.config.policy == "mixed") != bool(patterns):
        raise InputError(
            f"balance.policy={plan.config.policy}: expected patterns only for mixed, "
            f"got {len(patterns)}"
        )
    if any(len(pattern.counts) != len(plan.buckets) for pattern in patterns):
        raise InputError("patterns: expected a count for each bucket")


def _bucket_row(bucket: Bucket) -> dict:
    row = {f.name: getattr(bucket, f.name) for f in dataclasses.fields(bucket)}
    frames, height, width = bucket.shape.pixels
    return row | {
        "program": bucket.program.to_dict(),
        "tokens": bucket.tokens,
        "pixels": f"{frames}x{height}x{width}",
    }


def _bucket(row: Mapping[str, Any]) -> Bucket:
    derived = ("program", "tokens", "pixels")
    fields = {name: value for name, value in row.items() if name not in derived}
    return Bucket(program=Program.from_dict(row["program"]), **fields)


def _cost_model(content: Mapping[str, Any]) -> CostModel:
    return CostModel(
        laws={remat: CostLaw(**law) for remat, law in content["laws"].items()},
        unit=content["unit"],
        source=content["source"],
    )


def _pattern(row: Mapping[str, Any]) -> Pattern:
    return Pattern(counts=tuple(row["counts"]), times=row["times"])
