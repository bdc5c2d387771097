"""Validated access to the fields of a config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxload.errors import InputError

CLASS_NAME = "_class_name"
NUM_TEXT_TOKENS = "_num_text_tokens"
"""Field that jaxload adds; diffusers ignores fields that begin with _."""

MAX_LAYERS = 256
"""Most layers of a kind. Each has tens of tensors, whose names are made before any file
is compared with them."""

MAX_HEADS = 1_000
"""Most attention heads, and most channels of one."""

_MAX_COUNT = 1_000_000
_MAX_NUMBER = 1e9


class Fields:
    """Fields of a config.json; `end` rejects fields that no other method has read."""

    def __init__(self, path: Path, content: Mapping[str, Any]):
        """Wraps the content of the file at `path`."""
        self.path = path
        self._values = dict(content)
        self._asked: set[str] = set()

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Sets values for fields that the file does not have."""
        self._values = {**defaults, **self._values}

    def get(self, name: str) -> Any:
        """Returns the value of a field unchecked; None if it is absent."""
        self._asked.add(name)
        return self._values.get(name)

    def count(self, name: str, most: int = _MAX_COUNT) -> int:
        """Returns a field that must be a whole number from 1 to `most`."""
        value = self.get(name)
        if type(value) is not int or not 1 <= value <= most:
            raise self.error(name, f"a whole number from 1 to {most:,}")
        return value

    def optional_count(self, name: str) -> int:
        """Returns a field that must be null, which gives 0, or as for `count`."""
        return 0 if self.get(name) is None else self.count(name)

    def number(self, name: str) -> float:
        """Returns a field that must be a number above 0, and at most 1e9."""
        value = self.get(name)
        if type(value) not in (int, float) or not 0 < value <= _MAX_NUMBER:
            raise self.error(name, f"a number above 0, at most {_MAX_NUMBER:g}")
        return float(value)

    def require(self, name: str, *allowed: Any) -> None:
        """Checks that a field has one of the values that our models support."""
        value = self.get(name)
        # In Python, 1 equals True; in JSON, it does not.
        is_flag = isinstance(value, bool)
        if value not in [a for a in allowed if isinstance(a, bool) == is_flag]:
            expected = " or ".join("null" if a is None else repr(a) for a in allowed)
            raise self.error(name, expected)

    def end(self) -> None:
        """Checks that each field was read, except private, null or false fields."""
        for name, value in self._values.items():
            unknown = name not in self._asked and not name.startswith("_")
            if unknown and value not in (None, False):
                raise self.error(name, "no such field")

    def error(self, name: str, expected: str) -> InputError:
        """Returns the error for a field with an unexpected value."""
        got = self._values.get(name)
        if not name.isidentifier():
            name = repr(name)
        return InputError(
            f"{self.path}: {name:.80}: expected {expected}, got {got!r:.80}; jaxload "
            "has no such model"
        )
