"""Registry of model families, and the family of a config."""

import dataclasses
import functools
import importlib
import os
from typing import Annotated

from jaxload.errors import InputError
from jaxload.fields import OneOf
from jaxload.models import mmdit, wan
from jaxload.models.family import Family
from jaxload.models.transformer_config import TransformerConfig

_BUILT_IN = (
    wan.FAMILY,
    mmdit.FAMILY,
)
_VARIABLE = "JAXLOAD_FAMILIES"

_registered = {family.name: family for family in _BUILT_IN}


def register(family: Family) -> None:
    """Registers a family, so that its configs and presets can be used.

    Call this function in the module that defines the family. A config file imports that
    module. Commands without a config file import the modules that the environment
    variable JAXLOAD_FAMILIES names, separated by commas.

    Raises:
        InputError: Another family has the same name or a preset of the same name, or
            the field `kind` of the config class is not the name.
    """
    others = [other for other in _registered.values() if other.name != family.name]
    if _registered.get(family.name, family) != family:
        raise InputError(
            f"model family {family.name!r}: expected a new name, got one that is "
            "already registered; choose another"
        )
    for name in family.presets:
        if any(name in other.presets for other in others):
            raise InputError(
                f"model family {family.name!r}: expected presets with new names, got "
                f"{name!r}; choose another"
            )
    defaults = {
        field.name: field.default for field in dataclasses.fields(family.config)
    }
    if defaults.get("kind") != family.name:
        raise InputError(
            f"model family {family.name!r}: expected {family.config.__name__} to have "
            f"the field kind: Literal[{family.name!r}] = {family.name!r}; add it"
        )
    if family.config.patch[0] != 1:
        raise InputError(
            f"model family {family.name!r}: expected a patch of 1 latent frame, since "
            f"an image has one, got {family.config.patch}"
        )
    _registered[family.name] = family


def families() -> tuple[Family, ...]:
    """Returns all families: jaxload's own, then registered ones."""
    _import_named(os.environ.get(_VARIABLE, ""))
    return tuple(_registered.values())


def family_of(config: object) -> Family:
    """Returns the family of a model's config.

    Raises:
        InputError: The type of the config belongs to no family.
    """
    for family in families():
        if type(config) is family.config:
            return family
    names = " or a ".join(family.config.__name__ for family in families())
    raise InputError(f"config: expected a {names}, got a {type(config).__name__}")


def config_types() -> tuple[type[TransformerConfig], ...]:
    """Returns the config classes of all families."""
    return tuple(family.config for family in families())


_ADVICE = f"if a module of yours defines it, set {_VARIABLE}=MODULE"

ModelConfig = Annotated[TransformerConfig, OneOf(config_types, _ADVICE)]
"""Config of a model of any family."""


@functools.cache
def _import_named(modules: str) -> None:
    for module in filter(None, modules.split(",")):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(
                f"{_VARIABLE}={modules}: {module} cannot be imported ({error}); put "
                "its folder on PYTHONPATH"
            ) from error
