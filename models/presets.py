"""Model configs by name, of all families."""

import difflib

from jaxload.errors import InputError
from jaxload.models.families import ModelConfig, families


def all_presets() -> dict[str, ModelConfig]:
    """Returns the presets of all families by name."""
    return {
        name: config for family in families() for name, config in family.presets.items()
    }


def preset(name: str) -> ModelConfig:
    """Returns the config of a named model.

    Raises:
        InputError: The name is unknown; the message suggests the closest one.
    """
    known = all_presets()
    if name not in known:
        (close,) = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise InputError(
            f"model {name!r}: expected one of {', '.join(known)}; did you mean "
            f"{close!r}?"
        )
    return known[name]
