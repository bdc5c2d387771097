"""Flax modules. Import as `jaxload.models`; this folder is linked into the package.

Names are imported on first use, so that code that only needs model configs does not
import JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "jaxload.models":
    raise ImportError(
        f"`{__name__}` is the source folder of `jaxload.models`; importing it under "
        "another name loads every module twice. Write `import jaxload.models`."
    )

if TYPE_CHECKING:
    from jaxload.models.construction import attention_skips_padding, make_model
    from jaxload.models.families import ModelConfig, family_of, register
    from jaxload.models.family import Family
    from jaxload.models.mmdit.config import MMDiTConfig
    from jaxload.models.mmdit.model import MMDiT
    from jaxload.models.presets import all_presets, preset
    from jaxload.models.wan.config import WanConfig
    from jaxload.models.wan.model import WanTransformer

__all__ = [
    "Family",
    "MMDiT",
    "MMDiTConfig",
    "ModelConfig",
    "WanConfig",
    "WanTransformer",
    "all_presets",
    "attention_skips_padding",
    "family_of",
    "make_model",
    "preset",
    "register",
]

_MODULES = {
    "Family": "family",
    "MMDiT": "mmdit.model",
    "MMDiTConfig": "mmdit.config",
    "ModelConfig": "families",
    "WanConfig": "wan.config",
    "WanTransformer": "wan.model",
    "all_presets": "presets",
    "attention_skips_padding": "construction",
    "family_of": "families",
    "make_model": "construction",
    "preset": "presets",
    "register": "families",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
