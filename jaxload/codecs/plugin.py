"""Makes codecs and text encoders by name: built in, or module:attribute."""

import importlib
from collections.abc import Mapping
from typing import Any

from jaxload.errors import InputError


def make_plugin(
    kind: str, name: str, built_in: Mapping[str, Any], protocol: type
) -> Any:
    """Makes the object that a name stands for; messages call the object a `kind`.

    The named factory is called without arguments, and has to return a `protocol`.
    """
    if name not in built_in and name.count(":") != 1:
        known = ", ".join(built_in)
        raise InputError(
            f"{kind} {name!r}: expected {known} or one of your own as module:attribute"
        )
    try:
        plugin = (built_in.get(name) or _load(name))()
    except Exception as error:  # A plugin may raise anything.
        raise InputError(
            f"{kind} {name!r}: cannot be loaded ({type(error).__name__}: {error}); "
            "expected something importable that is called without arguments"
        ) from error
    if not isinstance(plugin, protocol):
        raise InputError(
            f"{kind} {name!r}: {type(plugin).__name__} lacks some of what a "
            f"{protocol.__name__} has; docs/data.md shows one"
        )
    return plugin


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
