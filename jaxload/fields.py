"""Metadata of config fields and of their types."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

_RESUME = "may_change_on_resume"

RESUMABLE: Mapping[str, Any] = {_RESUME: True}
"""Marks a field that a resumed run may change: no step's result depends on it."""


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Marks a type, with `typing.Annotated`, that stands for any of several sections.

    Unlike the members of a union, sections may be added after the type is defined.
    """

    types: Callable[[], tuple[type, ...]]
    """Returns the sections, which a Literal field `kind` distinguishes."""

    advice: str = ""
    """Remedy for an unknown kind, for error messages."""


def may_change_on_resume(field: dataclasses.Field) -> bool:
    """Returns whether a resumed run may give the field another value."""
    return bool(field.metadata.get(_RESUME))
