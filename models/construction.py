"""Builds a model of any family from its config."""

from flax import nnx

from jaxload.models.families import ModelConfig, family_of
from jaxload.models.transformer import Transformer


def make_model(config: ModelConfig, *, rngs: nnx.Rngs) -> Transformer:
    """Builds the model that the type of the config selects."""
    return family_of(config).model()(config, rngs=rngs)
