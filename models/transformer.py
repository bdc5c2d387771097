"""Base class of the models."""

# Shape suffixes: B batch, F H W latent frames, height and width, C channels, S tokens,
# P channels of a patch, T text tokens, E text width.

from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from jaxload.models.embeddings import Grid, from_patches, to_patches, token_grid
from jaxload.models.inputs import check_latent


class Transformer(nnx.Module):
    """Predicts the flow velocity, from latent to noise, given text embeddings.

    Each family's model is a subclass and defines `velocity`, which may take further
    conditions as keywords.
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
        **conditions: Any,
    ) -> Float[Array, "b f h w out"]:
        """Returns the velocity of latents, in float32; see `velocity`."""
        check_latent(type(self).__name__, self.config, latent_BFHWC)
        patch = self.config.patch
        grid = token_grid(latent_BFHWC.shape, patch)
        tokens_BSP = to_patches(latent_BFHWC, patch)
        velocity_BSP = self.velocity(
            tokens_BSP, grid, timestep_B, text_BTE, **conditions
        )
        return from_patches(velocity_BSP, grid, patch)

    def velocity(
        self,
        tokens_BSP: Float[Array, "b s p"],
        grid: Grid,
        timestep_B: Float[Array, " b"],
        text_BTE: Float[Array, "b t e"],
    ) -> Float[Array, "b s out"]:
        """Returns the velocity of tokens, in float32.

        Args:
            tokens_BSP: Patches of noisy latents, as `to_patches` cuts them.
            grid: Tokens along frames, rows and columns. If each sample has a grid of
                its own, no padding after its tokens affects the result, which has no
                meaning there.
            timestep_B: Noise level, from 0 (clean latent) to 1000 (noise).
            text_BTE: Text embeddings.

        Raises:
            InputError: A shape does not match the config.
        """
        raise NotImplementedError
