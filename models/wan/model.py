"""Wan 2.1: full space-time self-attention, and cross-attention to the text."""

# Shape suffixes: B batch, S tokens, P channels of a patch, C time channels, D model
# width, T text tokens, E text width, L image tokens, J image width, M modulations.

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxload.errors import InputError
from jaxload.models.axes import constrain
from jaxload.models.embeddings import (
    Grid,
    rope_widths,
    rotary_table,
    row_lengths,
    timestep_embedding,
    without_padding,
)
from jaxload.models.inputs import check_config, check_inputs
from jaxload.models.layers import ZEROS, linears, run_stacked, stack
from jaxload.models.transformer import Transformer
from jaxload.models.transformer_config import TIME_WIDTH
from jaxload.models.wan.blocks import (
    NUM_MODULATIONS,
    ImageEmbedding,
    WanBlock,
    modulation_table,
)
from jaxload.models.wan.config import WanConfig
from jaxload.ops import layer_norm_modulate

_ROPE_THETA = 10_000.0


class WanTransformer(Transformer):
    """Predicts the flow velocity, from latent to noise, given text embeddings."""

    config: WanConfig

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs):
        check_config("WanTransformer", config, WanConfig)
        width = config.width
        patch = math.prod(config.patch)
        normal = nnx.initializers.normal(0.02)
        linear = linears(config, rngs)
        self.config = config
        self.patch_in = linear(patch * config.in_channels, width, ("patch", "embed"))
        # The conditioning path stays in float32: it is cheap, and its rounding error
        # would reach every token of every block.
        self.time_in = linear(
            TIME_WIDTH, width, ("time", "embed"), float32=True, kernel_init=normal
        )
        self.time_out = linear(
            width, width, ("embed", "width"), float32=True, kernel_init=normal
        )
        self.time_projection = linear(
            width, NUM_MODULATIONS * width, ("embed", "modulation"), float32=True
        )
        self.text_in = linear(
            config.text_dim, width, ("text", "embed"), kernel_init=normal
        )
        self.text_out = linear(width, width, ("embed", "width"), kernel_init=normal)
        if config.image_dim:
            self.image = ImageEmbedding(config, rngs=rngs)
        self.blocks = stack(
            config.depth, lambda rngs: WanBlock(config, rngs=rngs), rngs
        )
        self.head_modulation = modulation_table(2, config, rngs)
        self.patch_out = linear(
            width,
            patch * config.channels,
            ("embed", "patch"),
            float32_out=True,
            kernel_init=ZEROS,
        )

    def velocity(
        self,
        tokens_BSP: Float[Array, "b s p"],
        grid: Grid,
        timestep_B: Float[Array, " b"],
        text_BTE: Float[Array, "b t e"],
        *,
        image: Float[Array, "b l j"] | None = None,
    ) -> Float[Array, "b s out"]:
        """Returns the velocity of tokens, in float32.

        Args:
            tokens_BSP: Patches of noisy latents; each latent is followed by the
                condition's channels if `config.condition_channels` is not 0.
            grid: Tokens along frames, rows and columns; see `Transformer.velocity`.
            timestep_B: Noise level, from 0 (clean latent) to 1000 (noise).
            text_BTE: Text embeddings. Shorter texts are padded with zeros to the
                config's num_text_tokens, and the padding is attended to, as the
                released models were trained.
            image: CLIP embedding of the first frame, [B, 257, 1280] for released
                models; required if the config has an image_dim, else None. With
                num_image_positions, the last frame's follows it: [B, 514, 1280].

        Raises:
            InputError: A shape does not match the config.
        """
        config = self.config
        check_inputs("WanTransformer", config, tokens_BSP, grid, timestep_B, text_BTE)
        batch, num_tokens, _ = tokens_BSP.shape
        self._check_image(batch, image)
        dtype = jnp.dtype(config.compute_dtype)
        lengths_B = row_lengths(grid)
        tokens_BSP = without_padding(tokens_BSP.astype(dtype), lengths_B)

        # Each activation is sharded by samples; without these constraints, XLA
        # redistributes the activations instead of gathering the weights.
        time_BC = constrain(timestep_embedding(timestep_B), "batch", "time")
        time_BD = constrain(self.time_in(time_BC), "batch", "width")
        time_BD = constrain(self.time_out(nnx.silu(time_BD)), "batch", "width")
        time_BMD = self.time_projection(nnx.silu(time_BD))
        time_BMD = time_BMD.reshape(-1, NUM_MODULATIONS, config.width)
        text_BTD = self._embed_text(text_BTE.astype(dtype))
        image_BLD = None if image is None else self.image(image.astype(dtype))
        widths = rope_widths(config.head_width)
        rotary = rotary_table(grid, num_tokens, widths, theta=_ROPE_THETA)

        def run(block: WanBlock, x_BSD: Array, lengths_B: Array | None) -> Array:
            return block(x_BSD, time_BMD, text_BTD, image_BLD, rotary, lengths_B)

        x_BSD = self.patch_in(tokens_BSP)
        x_BSD = run_stacked(self.blocks, run, x_BSD, rows=lengths_B, remat=config.remat)

        head_BMD = (
            time_BD[:, None] + self.head_modulation[...].astype(jnp.float32)[None]
        )
        x_BSD = layer_norm_modulate(x_BSD, head_BMD[:, 1], head_BMD[:, 0])
        return self.patch_out(x_BSD)

    def _embed_text(self, text_BTE: Array) -> Array:
        missing = self.config.num_text_tokens - text_BTE.shape[1]
        text_BTE = jnp.pad(text_BTE, ((0, 0), (0, missing), (0, 0)))
        text_BTE = constrain(text_BTE, "batch", "text_tokens", "text")
        text_BTD = self.text_in(text_BTE)
        text_BTD = constrain(text_BTD, "batch", "text_tokens", "width")
        return self.text_out(nnx.gelu(text_BTD))

    def _check_image(self, batch: int, image: jax.Array | None) -> None:
        config = self.config
        if (image is not None) != bool(config.image_dim):
            raise InputError(
                f"WanTransformer: expected {'an' if config.image_dim else 'no'} image, "
                f"as image_dim={config.image_dim}, got "
                f"{'none' if image is None else 'one'}"
            )
        if image is None:
            return
        shape, length = jnp.shape(image), config.num_image_positions
        if (
            len(shape) != 3
            or (shape[0], shape[2]) != (batch, config.image_dim)
            or shape[1] < 1
            or (length and shape[1] != length)
        ):
            raise InputError(
                f"WanTransformer: expected image of shape [{batch}, "
                f"{length or 'tokens'}, {config.image_dim}], got {shape}"
            )
