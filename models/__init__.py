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
    from jaxload.models.construction import make_model
    from jaxload.models.mmdit import MMDiT
    from jaxload.models.mmdit_config import MMDiTConfig
    from jaxload.models.presets import PRESETS, ModelConfig, preset
    from jaxload.models.wan import WanTransformer
    from jaxload.models.wan_config import WanConfig

__all__ = [
    "PRESETS",
    "MMDiT",
    "MMDiTConfig",
    "ModelConfig",
    "WanConfig",
    "WanTransformer",
    "make_model",
    "preset",
]

_MODULES = {
    "PRESETS": "presets",
    "MMDiT": "mmdit",
    "MMDiTConfig": "mmdit_config",
    "ModelConfig": "presets",
    "WanConfig": "wan_config",
    "WanTransformer": "wan",
    "make_model": "construction",
    "preset": "presets",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
