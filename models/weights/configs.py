"""Fields of a config.json, and whether a model here can be what they say."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxload.errors import InputError

CLASS_NAME = "_class_name"
NUM_TEXT_TOKENS = "_num_text_tokens"
"""Ours: diffusers leaves it to pipelines, and to it what begins so is no field."""


class Fields:
    """The fields of a config.json; each is asked for, and none may be left over."""

    def __init__(self, path: Path, content: Mapping[str, Any]):
        """Takes what a file says."""
        self.path = path
        self._values = dict(content)
        self._asked: set[str] = set()

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Sets what holds where the file says nothing."""
        self._values = {**defaults, **self._values}

    def get(self, name: str) -> Any:
        """A field that may be anything."""
        self._asked.add(name)
        return self._values.get(name)

    def count(self, name: str) -> int:
        """A field that must be a whole number of 1 or more."""
        value = self.get(name)
        if type(value) is not int or value < 1:
            raise self.error(name, "a whole number of 1 or more")
        return value

    def optional_count(self, name: str) -> int:
        """The same, or 0 for null."""
        return 0 if self.get(name) is None else self.count(name)

    def number(self, name: str) -> float:
        """A field that must be a number above 0."""
        value = self.get(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.error(name, "a number above 0")
        return float(value)

    def require(self, name: str, *allowed: Any) -> None:
        """Refuses a field with a value that no model here can have."""
        if self.get(name) not in allowed:
            expected = " or ".join("null" if a is None else repr(a) for a in allowed)
            raise self.error(name, expected)

    def end(self) -> None:
        """Refuses fields that were not asked for, unless they are off."""
        for name, value in self._values.items():
            unknown = name not in self._asked and not name.startswith("_")
            if unknown and value not in (None, False):
                raise self.error(name, "no such field")

    def error(self, name: str, expected: str) -> InputError:
        """The error for a field that is not as expected."""
        got = self._values.get(name)
        return InputError(
            f"{self.path}: {name}: expected {expected}, got {got!r}; models like that "
            "are not known here"
        )
