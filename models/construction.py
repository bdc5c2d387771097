"""A model from its config, of whatever kind it is."""

from flax import nnx

from jaxload.models.mmdit import MMDiT
from jaxload.models.presets import ModelConfig
from jaxload.models.wan import WanTransformer
from jaxload.models.wan_config import WanConfig


def make_model(config: ModelConfig, *, rngs: nnx.Rngs) -> WanTransformer | MMDiT:
    """Makes the model that a config is of."""
    if isinstance(config, WanConfig):
        return WanTransformer(config, rngs=rngs)
    return MMDiT(config, rngs=rngs)
