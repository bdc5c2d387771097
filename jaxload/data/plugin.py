"""Codecs and text encoders by name: built in, or module:attribute of any module."""

import importlib
from collections.abc import Mapping
from typing import Any

from jaxload.errors import InputError


def load_plugin(kind: str, name: str, built_in: Mapping[str, Any]) -> Any:
    """What a name stands for; `kind` says in messages what was looked for."""
    if name in built_in:
        return built_in[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(built_in)
        raise InputError(
            f"{kind} {name!r}: expected {known} or one of your own as module:attribute"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{kind} {name!r}: cannot be loaded ({error}); expected an importable "
            "module and its attribute"
        ) from error
