"""Builds a model of any family from its config."""

from flax import nnx

from jaxload.models.mmdit import MMDiT
from jaxload.models.presets import ModelConfig
from jaxload.models.wan import WanTransformer
from jaxload.models.wan_config import WanConfig


def make_model(config: ModelConfig, *, rngs: nnx.Rngs) -> WanTransformer | MMDiT:
    """Builds the model that the type of the config selects."""
    if isinstance(config, WanConfig):
        return WanTransformer(config, rngs=rngs)
    return MMDiT(config, rngs=rngs)
