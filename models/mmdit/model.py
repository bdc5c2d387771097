"""Video MMDiT: joint attention over text and video tokens.

Double blocks have separate weights for text and video; the single blocks after them
share weights. SD3 and FLUX are similar; HunyuanVideo is the same model.
"""

# Shape suffixes: B batch, S video tokens, P channels of a patch, T text tokens, U both:
# S + T, D model width, E text width, W time width.

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxload.errors import InputError
from jaxload.models.embeddings import (
    Grid,
    Rotary,
    rotary_table,
    row_lengths,
    timestep_embedding,
    without_padding,
)
from jaxload.models.inputs import check_config, check_inputs, check_shape
from jaxload.models.layers import ZEROS, linears, run_stacked, stack
from jaxload.models.mmdit.blocks import DoubleBlock, SingleBlock, TextRefiner
from jaxload.models.mmdit.config import MMDiTConfig
from jaxload.models.mmdit.keys import joint_keys
from jaxload.models.transformer import Transformer
from jaxload.models.transformer_config import TIME_WIDTH
from jaxload.ops import layer_norm_modulate


class MMDiT(Transformer):
    """Predicts the flow velocity, from latent to noise, given text embeddings."""

    config: MMDiTConfig

    def __init__(self, config: MMDiTConfig, *, rngs: nnx.Rngs):
        check_config("MMDiT", config, MMDiTConfig)
        width, pooled = config.width, config.pooled_dim
        patch = math.prod(config.patch)
        linear = linears(config, rngs)
        self.config = config
        self.patch_in = linear(patch * config.in_channels, width, ("patch", "embed"))
        self.refiner = TextRefiner(config, rngs=rngs)
        # The conditioning path stays in float32: it is cheap, and its rounding error
        # would reach every token of every block.
        self.time_in = linear(TIME_WIDTH, width, ("time", "embed"), float32=True)
        self.time_out = linear(width, width, ("embed", "width"), float32=True)
        self.pooled_in = linear(pooled, width, ("pooled", "embed"), float32=True)
        self.pooled_out = linear(width, width, ("embed", "width"), float32=True)
        if config.guidance:
            self.guidance_in = linear(
                TIME_WIDTH, width, ("time", "embed"), float32=True
            )
            self.guidance_out = linear(width, width, ("embed", "width"), float32=True)
        self.double_blocks = stack(
            config.num_double_blocks,
            lambda rngs: DoubleBlock(config, rngs=rngs),
            rngs,
        )
        self.single_blocks = stack(
            config.num_single_blocks,
            lambda rngs: SingleBlock(config, rngs=rngs),
            rngs,
        )
        self.head_modulation = linear(
            width,
            2 * width,
            ("embed", "modulation"),
            float32=True,
            kernel_init=ZEROS,
        )
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
        text_lengths: Int[Array, " b"] | None = None,
        pooled: Float[Array, "b pooled"] | None = None,
        guidance: Float[Array, " b"] | None = None,
    ) -> Float[Array, "b s out"]:
        """Returns the velocity of tokens, in float32.

        Args:
            tokens_BSP: Patches of noisy latents.
            grid: Tokens along frames, rows and columns; see `Transformer.velocity`.
            timestep_B: Noise level, from 0 (clean latent) to 1000 (noise).
            text_BTE: Text embeddings.
            text_lengths: Number of valid text tokens per sample; the tokens after them
                are neither attended to nor pooled. None counts the tokens up to the
                last one that is not zero.
            pooled: Pooled text embedding; None takes the mean of the text tokens.
            guidance: Guidance scale times 1000; required if `config.guidance` is true,
                else None.

        Raises:
            InputError: A shape does not match the config.
        """
        config = self.config
        check_inputs("MMDiT", config, tokens_BSP, grid, timestep_B, text_BTE)
        self._check_conditions(len(timestep_B), text_lengths, pooled, guidance)
        dtype = jnp.dtype(config.compute_dtype)
        num_tokens, num_text_tokens = tokens_BSP.shape[1], text_BTE.shape[1]
        video_lengths_B = row_lengths(grid)
        tokens_BSP = without_padding(tokens_BSP.astype(dtype), video_lengths_B)

        if text_lengths is None:
            text_lengths = _lengths_without_zeros(text_BTE)
        lengths_B = jnp.clip(text_lengths, 0, num_text_tokens)
        keys = joint_keys(video_lengths_B, lengths_B, num_tokens, num_text_tokens)
        text_BTD, mean_BE = self._embed_text(text_BTE, timestep_B, lengths_B)
        condition_BD = self._condition(
            timestep_B, mean_BE if pooled is None else pooled, guidance
        )
        video_BSD = self.patch_in(tokens_BSP)
        rotary = rotary_table(
            grid, num_tokens, config.rope_widths, theta=config.rope_theta
        )

        video_BSD, text_BTD = run_stacked(
            self.double_blocks,
            lambda block, streams, keys: block(*streams, condition_BD, rotary, keys),
            (video_BSD, text_BTD),
            rows=keys,
            remat=config.remat,
        )
        rotary_U = _still_after(rotary, num_text_tokens)
        x_BUD = run_stacked(
            self.single_blocks,
            lambda block, x_BUD, keys: block(x_BUD, condition_BD, rotary_U, keys),
            jnp.concatenate([video_BSD, text_BTD], axis=1),
            rows=keys,
            remat=config.remat,
        )

        scale, shift = jnp.split(
            self.head_modulation(nnx.silu(condition_BD)), 2, axis=-1
        )
        x_BSD = layer_norm_modulate(x_BUD[:, :num_tokens], scale, shift)
        return self.patch_out(x_BSD)

    def _embed_text(
        self, text_BTE: Array, timestep_B: Array, lengths_B: Array
    ) -> tuple[Array, Array]:
        """Returns the refined text tokens, and the mean of the text embeddings."""
        # A sample without text keeps one zero token, so that there is a key to attend.
        num_keys_B = jnp.maximum(lengths_B, 1)
        text_BTE = without_padding(text_BTE, lengths_B)
        mean_BE = _mean(text_BTE, num_keys_B)
        text_BTD = self.refiner(
            text_BTE.astype(self.config.compute_dtype),
            mean_BE,
            timestep_embedding(timestep_B),
            num_keys_B,
        )
        return text_BTD, mean_BE

    def _condition(
        self, timestep_B: Array, pooled: Array, guidance: jax.Array | None
    ) -> Array:
        """Embeds time, pooled text and guidance in the vector that modulates blocks."""
        time_BW = timestep_embedding(timestep_B)
        condition_BD = self.time_out(nnx.silu(self.time_in(time_BW)))
        if guidance is not None:
            guidance_BW = timestep_embedding(guidance)
            condition_BD += self.guidance_out(nnx.silu(self.guidance_in(guidance_BW)))
        return condition_BD + self.pooled_out(nnx.silu(self.pooled_in(pooled)))

    def _check_conditions(
        self,
        batch: int,
        text_lengths: jax.Array | None,
        pooled: jax.Array | None,
        guidance: jax.Array | None,
    ) -> None:
        config = self.config
        for name, array, expected in (
            ("text_lengths", text_lengths, (batch,)),
            ("pooled", pooled, (batch, config.pooled_dim)),
            ("guidance", guidance, (batch,)),
        ):
            if array is not None:
                check_shape("MMDiT", name, array, expected)
        if text_lengths is not None and not jnp.issubdtype(
            text_lengths.dtype, jnp.integer
        ):
            raise InputError(
                f"MMDiT: expected text_lengths of integers, got {text_lengths.dtype}"
            )
        if pooled is None and config.pooled_dim != config.text_dim:
            raise InputError(
                f"MMDiT: expected pooled text of width {config.pooled_dim}, got none; "
                f"the mean of the text has width {config.text_dim}, so pass `pooled`"
            )
        if (guidance is not None) != config.guidance:
            raise InputError(
                f"MMDiT: expected {'' if config.guidance else 'no '}guidance, as "
                f"guidance={config.guidance}, got "
                f"{'none' if guidance is None else 'some'}"
            )


def _still_after(rotary: Rotary, num_text_tokens: int) -> tuple[Array, Array]:
    """Appends text tokens to a rotary table, with angle 0: text is not rotated."""
    padding = ((0, 0), (0, num_text_tokens), (0, 0))
    cos, sin = rotary
    return jnp.pad(cos, padding, constant_values=1.0), jnp.pad(sin, padding)


def _lengths_without_zeros(text_BTE: Array) -> Array:
    """Counts each sample's text tokens, up to the last one that is not zero."""
    is_text_BT = (text_BTE != 0).any(axis=-1)
    places_1T = 1 + jnp.arange(text_BTE.shape[1], dtype=jnp.int32)[None]
    return jnp.where(is_text_BT, places_1T, 0).max(axis=1)


def _mean(text_BTE: Array, counts_B: Array) -> Array:
    """Returns the mean text token of each sample, in float32; padding must be zero."""
    total_BE = text_BTE.astype(jnp.float32).sum(axis=1)
    return total_BE / counts_B[:, None].astype(jnp.float32)
