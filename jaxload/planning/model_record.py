"""Record of the model in plan and cost files, and comparison with a run's model."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from jaxload.models import ModelConfig


def as_json(model: ModelConfig) -> dict[str, Any]:
    """Returns a model's config as JSON values, with lists in place of tuples."""
    return json.loads(json.dumps(dataclasses.asdict(model)))


def difference(recorded: Mapping[str, Any], model: ModelConfig) -> str:
    """Describes how a run's model differs from the recorded one; empty if it does not.

    The remat policy is not compared if the run leaves the choice to the planner.
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
    # The family and the sizes identify a model best.
    first = next(
        (name for name in ("kind", "width", "depth") if name in names), names[0]
    )
    shown = first if first.isidentifier() else repr(first)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"model.{shown:.80} is {recorded.get(first)!r:.80} there and "
        f"{given.get(first)!r:.80} here"
        f"{more}"
    )
