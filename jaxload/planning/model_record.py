"""The model that a plan or a measurement is for, as it is recorded in their files."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jaxload.models import ModelConfig


def as_json(model: ModelConfig) -> dict[str, Any]:
    """Returns a model's config as JSON gives it back."""
    return json.loads(json.dumps(dataclasses.asdict(model)))


def difference(recorded: Mapping[str, Any], model: ModelConfig) -> str:
    """Names the fields in which a run's model differs; empty if it is the same.

    The remat policy is left out where the run leaves it to the planner.
    """
    given = as_json(model)
    names = [
        name
        for name in sorted(recorded.keys() | given.keys())
        if recorded.get(name) != given.get(name)
        and not (name == "remat" and given.get(name) == "auto")
    ]
    if not names:
        return ""
    # Sizes say most about which model it is.
    first = next(
        (name for name in ("kind", "width", "depth") if name in names), names[0]
    )
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"model.{first} is {recorded.get(first)!r} there and {given.get(first)!r} here"
        f"{more}"
    )
