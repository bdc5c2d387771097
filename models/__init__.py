"""Flax modules. Import as `jaxload.models`; this folder is linked into the package."""

if __name__ != "jaxload.models":
    raise ImportError(
        f"`{__name__}` is the source folder of `jaxload.models`; importing it under "
        "another name loads every module twice. Write `import jaxload.models`."
    )

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
