"""A video diffusion transformer: full space-time attention, text by cross-attention."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxload.errors import InputError
from jaxload.models.embeddings import rotary_angles, rotate, timestep_embedding
from jaxload.ops import (
    attention,
    gated_residual_layer_norm_modulate,
    layer_norm_modulate,
)

# Shape suffixes: B batch, F H W latent frames, height and width, C channels, S tokens,
# D model width, I MLP width, N heads, K head width, T text tokens, E text width,
# M modulations, R rotations: half of K.

PATCH = 2
"""Latent rows and columns that one token covers; one frame deep."""

NUM_MODULATIONS = 6
"""Shift, scale and gate, for attention and for the MLP."""


TIME_WIDTH = 256
"""Cosines and sines that a noise level is embedded in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiTConfig:
    """Sizes of the diffusion transformer."""

    width: int
    """Model width; a multiple of num_heads."""

    depth: int
    """Number of blocks."""

    num_heads: int
    """Attention heads; each is width / num_heads wide, an even number."""

    mlp_width: int
    """Hidden width of each block's MLP."""

    text_dim: int
    """Width of the text embeddings; the data set must have the same."""

    num_text_tokens: int
    """Text tokens that each sample is padded to."""

    channels: int = 16
    """Latent channels; the codec of the data set must have the same."""

    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of activations and matmuls; parameters are kept in float32."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1:
                raise InputError(f"model.{field.name}={value}: expected 1 or more")
        # Six: a pair of channels to rotate along each of frames, height and width.
        if self.width % (2 * self.num_heads) or self.head_width < 6:
            raise InputError(
                f"model.width={self.width} with num_heads={self.num_heads}: expected "
                "heads of an even width of 6 or more; choose a width that is a "
                f"multiple of {2 * self.num_heads}, from {6 * self.num_heads} on"
            )

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.num_heads


class SelfAttention(nnx.Module):
    """Attention among all tokens, with normalised queries and keys and 3D rotations."""

    def __init__(self, config: DiTConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.compute_dtype)
        self.num_heads = config.num_heads
        self.qkv = nnx.Linear(config.width, 3 * config.width, dtype=dtype, rngs=rngs)
        self.q_norm = nnx.RMSNorm(config.head_width, dtype=dtype, rngs=rngs)
        self.k_norm = nnx.RMSNorm(config.head_width, dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(config.width, config.width, dtype=dtype, rngs=rngs)

    def __call__(
        self, x_BSD: Float[Array, "b s d"], angles_SR: Float[Array, "s r"]
    ) -> Float[Array, "b s d"]:
        b, s, d = x_BSD.shape
        qkv = self.qkv(x_BSD).reshape(b, s, 3, self.num_heads, d // self.num_heads)
        q_BSNK = rotate(self.q_norm(qkv[:, :, 0]), angles_SR)
        k_BSNK = rotate(self.k_norm(qkv[:, :, 1]), angles_SR)
        return self.out(attention(q_BSNK, k_BSNK, qkv[:, :, 2]).reshape(b, s, d))


class CrossAttention(nnx.Module):
    """Attention from the tokens to the text."""

    def __init__(self, config: DiTConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.compute_dtype)
        self.num_heads = config.num_heads
        self.q = nnx.Linear(config.width, config.width, dtype=dtype, rngs=rngs)
        self.kv = nnx.Linear(config.width, 2 * config.width, dtype=dtype, rngs=rngs)
        self.q_norm = nnx.RMSNorm(config.head_width, dtype=dtype, rngs=rngs)
        self.k_norm = nnx.RMSNorm(config.head_width, dtype=dtype, rngs=rngs)
        # Zero: this branch has no gate, and an untrained block must be the identity.
        self.out = nnx.Linear(
            config.width,
            config.width,
            kernel_init=nnx.initializers.zeros,
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(
        self, x_BSD: Float[Array, "b s d"], text_BTD: Float[Array, "b t d"]
    ) -> Float[Array, "b s d"]:
        b, s, d = x_BSD.shape
        heads = (self.num_heads, d // self.num_heads)
        kv = self.kv(text_BTD).reshape(b, -1, 2, *heads)
        q_BSNK = self.q_norm(self.q(x_BSD).reshape(b, s, *heads))
        k_BTNK = self.k_norm(kv[:, :, 0])
        return self.out(attention(q_BSNK, k_BTNK, kv[:, :, 1]).reshape(b, s, d))


class DiTBlock(nnx.Module):
    """Attention, text and MLP; the first and the last are modulated and gated."""

    def __init__(self, config: DiTConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.compute_dtype)
        self.modulation = nnx.Param(jnp.zeros((NUM_MODULATIONS, config.width)))
        self.attn = SelfAttention(config, rngs=rngs)
        # The text branch is not modulated by time: one scale and shift for all samples.
        self.text_scale = nnx.Param(jnp.zeros(config.width))
        self.text_shift = nnx.Param(jnp.zeros(config.width))
        self.text_attn = CrossAttention(config, rngs=rngs)
        self.mlp_in = nnx.Linear(config.width, config.mlp_width, dtype=dtype, rngs=rngs)
        self.mlp_out = nnx.Linear(
            config.mlp_width, config.width, dtype=dtype, rngs=rngs
        )

    def __call__(
        self,
        x_BSD: Float[Array, "b s d"],
        time_BMD: Float[Array, "b m d"],
        text_BTD: Float[Array, "b t d"],
        angles_SR: Float[Array, "s r"],
    ) -> Float[Array, "b s d"]:
        modulation_BMD = time_BMD + self.modulation[None]
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            modulation_BMD[:, i] for i in range(NUM_MODULATIONS)
        )

        text_scale, text_shift = (
            jnp.broadcast_to(param[None], gate1.shape)
            for param in (self.text_scale, self.text_shift)
        )

        h_BSD = self.attn(layer_norm_modulate(x_BSD, scale1, shift1), angles_SR)
        x_BSD, h_BSD = gated_residual_layer_norm_modulate(
            x_BSD, h_BSD, gate1, text_scale, text_shift
        )
        x_BSD = x_BSD + self.text_attn(h_BSD, text_BTD)

        h_BSI = self.mlp_in(layer_norm_modulate(x_BSD, scale2, shift2))
        h_BSD = self.mlp_out(nnx.gelu(h_BSI))
        return x_BSD + gate2.astype(x_BSD.dtype)[:, None] * h_BSD


class DiT(nnx.Module):
    """Predicts the velocity of the flow from noise to a latent, given a caption."""

    def __init__(self, config: DiTConfig, *, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.compute_dtype)
        width, patch_width = config.width, PATCH * PATCH * config.channels
        zeros = nnx.initializers.zeros
        self.config = config
        self.patch_in = nnx.Linear(patch_width, width, dtype=dtype, rngs=rngs)
        # The conditioning path stays in float32: it is small, and its error would
        # reach every token of every block.
        self.time_in = nnx.Linear(TIME_WIDTH, width, rngs=rngs)
        self.time_out = nnx.Linear(width, width, rngs=rngs)
        self.time_to_blocks = nnx.Linear(
            width, NUM_MODULATIONS * width, kernel_init=zeros, rngs=rngs
        )
        self.time_to_head = nnx.Linear(width, 2 * width, kernel_init=zeros, rngs=rngs)
        self.text_in = nnx.Linear(config.text_dim, width, dtype=dtype, rngs=rngs)
        self.text_out = nnx.Linear(width, width, dtype=dtype, rngs=rngs)
        self.blocks = _stacked_blocks(config, rngs)
        self.patch_out = nnx.Linear(
            width, patch_width, kernel_init=zeros, dtype=dtype, rngs=rngs
        )

    def __call__(
        self,
        latent_BFHWC: Float[Array, "b f h w c"],
        sigma_B: Float[Array, " b"],
        text_BTE: Float[Array, "b t e"],
    ) -> Float[Array, "b f h w c"]:
        b, frames, height, width, _ = latent_BFHWC.shape
        dtype = jnp.dtype(self.config.compute_dtype)
        grid = (frames, height // PATCH, width // PATCH)

        x_BSD = self.patch_in(_to_patches(latent_BFHWC.astype(dtype)))
        time_BD = self.time_out(
            nnx.silu(self.time_in(timestep_embedding(sigma_B, TIME_WIDTH)))
        )
        time_BMD = self.time_to_blocks(nnx.silu(time_BD)).reshape(
            b, NUM_MODULATIONS, -1
        )
        text_BTD = self.text_out(nnx.gelu(self.text_in(text_BTE.astype(dtype))))
        angles_SR = rotary_angles(grid, self.config.head_width)

        def run_block(x_BSD, block: DiTBlock):
            return block(x_BSD, time_BMD, text_BTD, angles_SR)

        # One block is traced and compiled, however many there are.
        scan = nnx.scan(run_block, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        x_BSD = scan(x_BSD, self.blocks)

        shift, scale = jnp.split(self.time_to_head(nnx.silu(time_BD)), 2, axis=-1)
        x_BSD = self.patch_out(layer_norm_modulate(x_BSD, scale, shift))
        return _from_patches(x_BSD, latent_BFHWC.shape).astype(jnp.float32)


def _stacked_blocks(config: DiTConfig, rngs: nnx.Rngs) -> DiTBlock:
    """All blocks as one, each parameter with a leading axis of length `depth`."""

    @nnx.split_rngs(splits=config.depth)
    @nnx.vmap
    def create(rngs: nnx.Rngs) -> DiTBlock:
        return DiTBlock(config, rngs=rngs)

    return create(rngs)


def _to_patches(latent_BFHWC: Array) -> Array:
    """Cuts a latent into tokens; the width runs fastest, then the height."""
    b, f, h, w, c = latent_BFHWC.shape
    x = latent_BFHWC.reshape(b, f, h // PATCH, PATCH, w // PATCH, PATCH, c)
    return x.transpose(0, 1, 2, 4, 3, 5, 6).reshape(b, -1, PATCH * PATCH * c)


def _from_patches(x_BSP: Array, shape: tuple[int, ...]) -> Array:
    """Puts tokens back together into a latent of the given shape."""
    b, f, h, w, c = shape
    x = x_BSP.reshape(b, f, h // PATCH, w // PATCH, PATCH, PATCH, c)
    return x.transpose(0, 1, 2, 4, 3, 5, 6).reshape(shape)
