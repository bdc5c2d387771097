"""Makes codecs and text encoders by name: a built-in name, or module:attribute."""

import importlib
import inspect
import numbers
from collections.abc import Mapping
from typing import Any, get_type_hints

from jaxload.errors import InputError

_PAGE = "docs/adding-a-codec.md describes each member"


def make_plugin(
    role: str,
    name: str,
    built_in: Mapping[str, Any],
    protocol: type,
    batch_protocol: type,
) -> Any:
    """Makes a plugin by calling the class or function with this name, no arguments.

    Args:
        role: Noun for the plugin in error messages, such as "codec".
        name: Key of `built_in`, or module:attribute.
        built_in: Classes or functions by name.
        protocol: Protocol that the plugin must implement.
        batch_protocol: Protocol with more members, all of which the plugin must have
            if it has one of them.
    """
    if name not in built_in and name.count(":") != 1:
        known = ", ".join(built_in)
        raise InputError(
            f"{role} {name!r}: expected {known} or your own as module:attribute"
        )
    expected = _members(batch_protocol)
    try:
        plugin = (built_in.get(name) or _load(name))()
        found = {member: getattr(plugin, member, None) for member in expected}
    except Exception as error:  # A plugin may raise anything.
        raise InputError(
            f"{role} {name!r}: cannot be loaded ({described(error)}); "
            f"{_remedy(name, error)}"
        ) from error
    who, kind = f"{role} {name!r}", type(plugin).__name__
    _check_complete(f"{who}: {kind}", found, _members(protocol))
    _check_kinds(who, found, expected)
    if not isinstance(found["name"], str):
        raise InputError(f"{who}: name is {found['name']!r}: expected text; {_PAGE}")
    return plugin


def described(error: Exception) -> str:
    """Describes an exception of a plugin in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def whole(what: str, value: Any) -> int:
    """Converts a number of a plugin to int; refuses fractions and numbers below 1."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{what} is {value!r}: expected a whole number, at least 1")
    return int(value)


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _remedy(name: str, error: Exception) -> str:
    module = name.split(":")[0].split(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return (
            f"start the command with python -m in the directory of {module}, or add "
            "that directory to PYTHONPATH, on each machine"
        )
    return "expected a class that can be imported and called without arguments"


def _members(protocol: type) -> dict[str, bool]:
    """Returns the public members of a protocol; True for methods."""
    methods = dict(inspect.getmembers(protocol, inspect.isfunction))
    names = sorted({*get_type_hints(protocol), *methods})
    return {name: name in methods for name in names if not name.startswith("_")}


def _check_complete(
    who: str, found: Mapping[str, Any], required: Mapping[str, bool]
) -> None:
    absent = [member for member, value in found.items() if value is None]
    missing = [member for member in absent if member in required]
    if missing:
        raise InputError(f"{who} lacks {', '.join(missing)}; {_PAGE}")
    present = found.keys() - required - {*absent}
    if absent and present:
        has, lacks = ", ".join(sorted(present)), ", ".join(absent)
        raise InputError(
            f"{who} has {has} and lacks {lacks}; add {lacks} to encode batches, or "
            f"remove {has}"
        )


def _check_kinds(
    who: str, found: Mapping[str, Any], expected: Mapping[str, bool]
) -> None:
    for member, is_method in expected.items():
        value = found[member]
        if value is None or callable(value) == is_method:
            continue
        if is_method:
            problem = f"is {value!r}: expected a method"
        else:
            problem = "is a method: expected a value"
        raise InputError(f"{who}: {member} {problem}; {_PAGE}")
