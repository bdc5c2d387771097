"""MMDiT: its family record. Models and weights are imported on first use."""

from typing import TYPE_CHECKING, Any

from jaxload.models.family import Family
from jaxload.models.mmdit.config import MMDiTConfig
from jaxload.models.mmdit.flops import MMDiTArchitecture
from jaxload.models.mmdit.presets import PRESETS

if TYPE_CHECKING:
    from jaxload.models.mmdit.model import MMDiT
    from jaxload.models.weights.names import WeightNames


def _model() -> "type[MMDiT]":
    from jaxload.models.mmdit.model import MMDiT

    return MMDiT


def _weights() -> "WeightNames":
    from jaxload.models.mmdit.weights import MMDIT

    return MMDIT


def _required_to_train(config: MMDiTConfig) -> dict[str, Any]:
    # The mean of the text tokens replaces a pooled embedding of the same width.
    return {"guidance": False, "pooled_dim": config.text_dim}


def _extra_inputs(config: MMDiTConfig) -> dict[str, tuple[int, ...]]:
    pooled = {"pooled": (config.pooled_dim,)}
    return pooled | {"guidance": ()} if config.guidance else pooled


FAMILY = Family(
    name="mmdit",
    config=MMDiTConfig,
    model=_model,
    presets=PRESETS,
    flops=MMDiTArchitecture,
    form="length",
    weights=_weights,
    required_to_train=_required_to_train,
    extra_inputs=_extra_inputs,
)
