"""The plan: catalogue, budgets and where each number came from, as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jaxload.balance.catalogue import (
    BalanceConfig,
    Bucket,
    Catalogue,
    Dropped,
    choose_catalogue,
)
from jaxload.balance.cost import CostModel
from jaxload.balance.shape import Shape
from jaxload.errors import InputError

_FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run executes, known before its first step."""

    catalogue: Catalogue
    cost_model: CostModel
    config: BalanceConfig
    num_replicas: int
    dataset: str
    """Digest of what made the data set; another one needs another plan."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The catalogue's buckets."""
        return self.catalogue.buckets

    def work_shares(self) -> list[float]:
        """Share of an epoch's cost that each bucket takes."""
        work = [b.cost * b.num_samples / b.batch for b in self.buckets]
        return [w / sum(work) for w in work]


def make_plan(
    counts: Mapping[Shape, int],
    *,
    config: BalanceConfig,
    cost_model: CostModel,
    num_replicas: int,
    dataset: str,
) -> Plan:
    """Plans for samples counted by shape."""
    catalogue = choose_catalogue(
        counts, config=config, cost_model=cost_model, num_replicas=num_replicas
    )
    return Plan(
        catalogue=catalogue,
        cost_model=cost_model,
        config=config,
        num_replicas=num_replicas,
        dataset=dataset,
    )


def to_json(plan: Plan) -> str:
    """Writes a plan as text; `from_dict` makes an equal plan of what it says."""
    content = {
        "format": _FORMAT,
        "dataset": plan.dataset,
        "num_replicas": plan.num_replicas,
        "budget": dataclasses.asdict(plan.config),
        "cost_model": dataclasses.asdict(plan.cost_model),
        "memory_model": "tokens of a micro-batch, against budget.max_tokens",
        "buckets": [_row(bucket) for bucket in plan.buckets],
        "dropped": [_row(dropped) for dropped in plan.catalogue.dropped],
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
        return Plan(
            catalogue=Catalogue(
                buckets=tuple(Bucket(**_fields(row)) for row in content["buckets"]),
                dropped=tuple(Dropped(**_fields(row)) for row in content["dropped"]),
            ),
            cost_model=CostModel(**content["cost_model"]),
            config=BalanceConfig(**content["budget"]),
            num_replicas=content["num_replicas"],
            dataset=content["dataset"],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{name}: not a plan ({error!r}); plan again") from error


def _row(record: Bucket | Dropped) -> dict:
    row = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return row | {"shape": str(record.shape), "tokens": record.shape.tokens}


def _fields(row: dict) -> dict:
    derived = {"tokens"}
    return {k: v for k, v in row.items() if k not in derived} | {
        "shape": Shape.parse(row["shape"])
    }
