"""Makes codecs and text encoders by name: a built-in name, or module:attribute."""

import importlib
from collections.abc import Mapping
from typing import Any, get_type_hints

from jaxload.errors import InputError


def make_plugin(
    role: str, name: str, built_in: Mapping[str, Any], protocol: type
) -> Any:
    """Makes a plugin by calling the class or function with this name, no arguments.

    Args:
        role: Noun for the plugin in error messages, such as "codec".
        name: Key of `built_in`, or module:attribute.
        built_in: Classes or functions by name.
        protocol: Protocol that the plugin must implement.
    """
    if name not in built_in and name.count(":") != 1:
        known = ", ".join(built_in)
        raise InputError(
            f"{role} {name!r}: expected {known} or your own as module:attribute"
        )
    try:
        plugin = (built_in.get(name) or _load(name))()
    except Exception as error:  # A plugin may raise anything.
        raise InputError(
            f"{role} {name!r}: cannot be loaded ({type(error).__name__}: {error}); "
            "expected a class that can be imported and called without arguments"
        ) from error
    if not isinstance(plugin, protocol):
        public = [name for name in vars(protocol) if not name.startswith("_")]
        members = sorted({*get_type_hints(protocol), *public})
        missing = [member for member in members if not hasattr(plugin, member)]
        raise InputError(
            f"{role} {name!r}: {type(plugin).__name__} lacks {', '.join(missing)}; "
            "docs/adding-a-codec.md describes each member"
        )
    return plugin


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
