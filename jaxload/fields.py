"""Metadata of config fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any

_RESUME = "may_change_on_resume"

RESUMABLE: Mapping[str, Any] = {_RESUME: True}
"""Marks a field that a resumed run may change: no step's result depends on it."""


def may_change_on_resume(field: dataclasses.Field) -> bool:
    """Returns whether a resumed run may give the field another value."""
    return bool(field.metadata.get(_RESUME))
