"""The plan: catalogue, budgets and where each number came from, as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jaxload.balance.batch_sizes import BalanceConfig
from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.balance.mixed import Mixed
from jaxload.balance.pattern import Pattern
from jaxload.errors import InputError
from jaxload.shapes.clips import ShapeRules
from jaxload.shapes.cover import LeftOut
from jaxload.shapes.shape import Shape

_FORMAT = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run executes, known before its first step."""

    buckets: tuple[Bucket, ...]
    patterns: tuple[Pattern, ...] = ()
    """Of the mixed policy: what replicas run in a step, and how often."""

    rest: tuple[Pattern, ...] = ()
    """Of the mixed policy: what they run once an epoch."""

    left_out: tuple[LeftOut, ...]
    kept_content: float
    """Share of the content that all candidate shapes together would keep."""

    budget: float
    """Cost that a micro-batch may have; 0 for the rule `equal-token`."""

    cost_model: CostModel
    config: BalanceConfig
    rules: ShapeRules | None
    """How samples were fitted to shapes; None: they were prepared before."""

    num_replicas: int
    accumulate: int
    dataset: str
    """Digest of what made the data set; another one needs another plan."""

    sources: Mapping[str, str]
    """Where each kind of number comes from."""

    idle_shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What each policy would idle on the same shapes, simulated."""

    def mixed_schedule(self, seed: int) -> Mixed:
        """The schedule of a mixed plan."""
        return Mixed(
            buckets=self.buckets,
            patterns=self.patterns,
            rest=self.rest,
            seed=seed,
            num_replicas=self.num_replicas,
        )

    def work_shares(self) -> list[float]:
        """Share of an epoch's cost that each bucket takes."""
        samples = self._samples()
        work = [
            b.cost * n / b.batch for b, n in zip(self.buckets, samples, strict=True)
        ]
        return [w / sum(work) for w in work]

    def _samples(self) -> list[float]:
        """Samples that each bucket runs in an epoch."""
        if not self.patterns and not self.rest:
            return [float(b.num_samples) for b in self.buckets]
        return [
            float(b.batch * sum(p.times * p.counts[i] for p in self._all_patterns()))
            for i, b in enumerate(self.buckets)
        ]

    def _all_patterns(self) -> tuple[Pattern, ...]:
        return (*self.patterns, *self.rest)


def to_json(plan: Plan) -> str:
    """Writes a plan as text; `from_dict` makes an equal plan of what it says."""
    content = {
        "format": _FORMAT,
        "dataset": plan.dataset,
        "num_replicas": plan.num_replicas,
        "accumulate": plan.accumulate,
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


def from_dict(content: Mapping[str, Any], *, name: str) -> Plan:
    """Reads a plan; `name` says in an error message which one it was."""
    if content.get("format") != _FORMAT:
        raise InputError(
            f"{name}: expected plan format {_FORMAT}, got {content.get('format')!r}; "
            "plan again with this version"
        )
    try:
        rules = content["shapes"]
        return Plan(
            buckets=tuple(_bucket(row) for row in content["buckets"]),
            patterns=tuple(_pattern(row) for row in content["patterns"]),
            rest=tuple(_pattern(row) for row in content["rest"]),
            left_out=tuple(
                LeftOut(**(row | {"examples": tuple(row["examples"])}))
                for row in content["left_out"]
            ),
            kept_content=content["kept_content"],
            budget=content["budget"],
            cost_model=CostModel(**content["cost_model"]),
            config=BalanceConfig(**content["balance"]),
            rules=None if rules is None else ShapeRules(**rules),
            num_replicas=content["num_replicas"],
            accumulate=content["accumulate"],
            dataset=content["dataset"],
            sources=content["sources"],
            idle_shares=content["idle_shares"],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{name}: not a plan ({error!r}); plan again") from error


def _bucket_row(bucket: Bucket) -> dict:
    row = {f.name: getattr(bucket, f.name) for f in dataclasses.fields(bucket)}
    frames, height, width = bucket.shape.pixels
    return row | {
        "shape": str(bucket.shape),
        "tokens": bucket.shape.tokens,
        "pixels": f"{frames}x{height}x{width}",
    }


def _bucket(row: dict) -> Bucket:
    derived = {"shape", "tokens", "pixels"}
    fields = {k: v for k, v in row.items() if k not in derived}
    return Bucket(shape=Shape.parse(row["shape"]), **fields)


def _pattern(row: dict) -> Pattern:
    return Pattern(counts=tuple(row["counts"]), times=row["times"])
