"""Wan 2.1: its family record. Models and weights are imported on first use."""

from typing import TYPE_CHECKING

from jaxload.models.family import Family
from jaxload.models.wan.config import WanConfig
from jaxload.models.wan.flops import WanArchitecture
from jaxload.models.wan.presets import PRESETS

if TYPE_CHECKING:
    from jaxload.models.wan.model import WanTransformer
    from jaxload.models.weights.names import WeightNames


def _model() -> "type[WanTransformer]":
    from jaxload.models.wan.model import WanTransformer

    return WanTransformer


def _weights() -> "WeightNames":
    from jaxload.models.wan.weights import WAN

    return WAN


def _required_to_train(config: WanConfig) -> dict[str, int]:
    return {"condition_channels": 0, "image_dim": 0}


def _extra_inputs(config: WanConfig) -> dict[str, tuple[int, ...]]:
    if not config.image_dim:
        return {}
    return {"image": (config.num_image_tokens, config.image_dim)}


FAMILY = Family(
    name="wan",
    config=WanConfig,
    model=_model,
    presets=PRESETS,
    flops=WanArchitecture,
    form="length",
    weights=_weights,
    required_to_train=_required_to_train,
    extra_inputs=_extra_inputs,
)
