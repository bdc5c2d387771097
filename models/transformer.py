"""Base class of the models."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float


class Transformer(nnx.Module):
    """Predicts the flow velocity, from latent to noise, given text embeddings.

    Each family's model is a subclass; it may take further inputs as keywords.
    """

    config: Any
    """Config of the model; a subclass of TransformerConfig."""

    def __init__(self, config: Any, *, rngs: nnx.Rngs):
        """Creates the parameters, drawing their initial values from `rngs`."""
        raise NotImplementedError

    def __call__(
        self,
        latent_BFHWC: Float[Array, "b f h w c"],
        timestep_B: Float[Array, " b"],
        text_BTE: Float[Array, "b t e"],
    ) -> Float[Array, "b f h w out"]:
        """Returns the velocity, in float32; timesteps are 0 (clean) to 1000 (noise)."""
        raise NotImplementedError
