"""Models of any family, built from their configs."""

from flax import nnx

from jaxload.models.families import ModelConfig, family_of
from jaxload.models.transformer import Transformer
from jaxload.ops import skips_padding_on_gpus


def make_model(config: ModelConfig, *, rngs: nnx.Rngs) -> Transformer:
    """Builds the model that the type of the config selects."""
    return family_of(config).model()(config, rngs=rngs)


def attention_skips_padding(config: ModelConfig) -> bool:
    """Returns whether the model's attention on GPUs takes no time for padding."""
    return skips_padding_on_gpus(config.compute_dtype, config.head_width)
