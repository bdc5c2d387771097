"""The blocks of a Wan transformer."""

# Shape suffixes: B batch, S tokens, D model width, I MLP width, N heads, K head width,
# T text tokens, L image tokens, J image width, M modulations.

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxload.models.axes import constrain, param
from jaxload.models.embeddings import Rotary, rotate
from jaxload.models.layers import (
    LayerNorm,
    RMSNorm,
    add_gated,
    linears,
    merge_heads,
    split_heads,
)
from jaxload.models.remat import CROSS_ATTENTION
from jaxload.models.wan.config import WanConfig
from jaxload.ops import (
    attention,
    gated_residual_layer_norm_modulate,
    layer_norm_modulate,
)

NUM_MODULATIONS = 6
"""Number of modulations: shift, scale and gate, for attention and for the MLP."""

_IMAGE_EPS = 1e-5  # Epsilon of the image embedding's norms, as in the original.


class _Projections(nnx.Module):
    """QKV and output projections, as in both self-attention and cross-attention."""

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs):
        width, linear = config.width, linears(config, rngs)
        self.num_heads = config.num_heads
        self.q = linear(width, width, ("embed", "heads"), target="q")
        self.k = linear(width, width, ("embed", "heads"), target="k")
        self.v = linear(width, width, ("embed", "heads"), target="v")
        # Wan normalizes over all heads together, so before heads are split.
        self.q_norm = RMSNorm(width, axis="heads", config=config)
        self.k_norm = RMSNorm(width, axis="heads", config=config)
        self.out = linear(width, width, ("heads", "embed"), target="out")


class SelfAttention(_Projections):
    """Self-attention among all tokens of a sample, with rotary embeddings."""

    def __call__(
        self,
        x_BSD: Float[Array, "b s d"],
        rotary: Rotary,
        lengths_B: Int[Array, " b"] | None,
    ) -> Float[Array, "b s d"]:
        q_BSNK, k_BSNK, v_BSNK = (
            split_heads(x, self.num_heads)
            for x in (
                self.q_norm(self.q(x_BSD)),
                self.k_norm(self.k(x_BSD)),
                self.v(x_BSD),
            )
        )
        q_BSNK, k_BSNK = rotate(q_BSNK, rotary), rotate(k_BSNK, rotary)
        h_BSNK = attention(q_BSNK, k_BSNK, v_BSNK, key_lengths=lengths_B)
        return self.out(merge_heads(h_BSNK))


class CrossAttention(_Projections):
    """Cross-attention to the text and, separately, to an image; results are added."""

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        if config.image_dim:
            width, linear = config.width, linears(config, rngs)
            self.image_k = linear(width, width, ("embed", "heads"), target="k")
            self.image_v = linear(width, width, ("embed", "heads"), target="v")
            self.image_k_norm = RMSNorm(width, axis="heads", config=config)

    def __call__(
        self,
        x_BSD: Float[Array, "b s d"],
        text_BTD: Float[Array, "b t d"],
        image_BLD: Float[Array, "b l d"] | None,
    ) -> Float[Array, "b s d"]:
        q_BSNK = split_heads(self.q_norm(self.q(x_BSD)), self.num_heads)
        split_text = functools.partial(
            split_heads, num_heads=self.num_heads, tokens="text_tokens"
        )
        k_BTNK = split_text(self.k_norm(self.k(text_BTD)))
        v_BTNK = split_text(self.v(text_BTD))
        h_BSNK = attention(q_BSNK, k_BTNK, v_BTNK, name=CROSS_ATTENTION)
        if image_BLD is not None:
            k_BLNK = split_text(self.image_k_norm(self.image_k(image_BLD)))
            v_BLNK = split_text(self.image_v(image_BLD))
            h_BSNK += attention(q_BSNK, k_BLNK, v_BLNK, name=CROSS_ATTENTION)
        return self.out(merge_heads(h_BSNK))


class WanBlock(nnx.Module):
    """Self-attention, cross-attention and MLP; all but the second are modulated."""

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs):
        width, mlp_width = config.width, config.mlp_width
        linear = linears(config, rngs)
        self.modulation = modulation_table(NUM_MODULATIONS, config, rngs)
        self.self_attention = SelfAttention(config, rngs=rngs)
        self.cross_norm = LayerNorm(width, axis="width", config=config)
        self.cross_attention = CrossAttention(config, rngs=rngs)
        self.mlp_in = linear(width, mlp_width, ("embed", "mlp"), target="mlp_in")
        self.mlp_out = linear(mlp_width, width, ("mlp", "embed"), target="mlp_out")

    def __call__(
        self,
        x_BSD: Float[Array, "b s d"],
        time_BMD: Float[Array, "b m d"],
        text_BTD: Float[Array, "b t d"],
        image_BLD: Float[Array, "b l d"] | None,
        rotary: Rotary,
        lengths_B: Int[Array, " b"] | None,
    ) -> Float[Array, "b s d"]:
        """Returns the tokens; those beyond the lengths are not attended to."""
        x_BSD = constrain(x_BSD, "batch", "tokens", "width")
        # Without these two constraints, XLA gathers the gradients of text and time
        # over the batch, in every block.
        text_BTD = constrain(text_BTD, "batch", "text_tokens", "width")
        time_BMD = constrain(time_BMD, "batch", "modulation", "width")
        modulation_BMD = time_BMD + self.modulation[...].astype(jnp.float32)[None]
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            modulation_BMD[:, i] for i in range(NUM_MODULATIONS)
        )

        h_BSD = layer_norm_modulate(x_BSD, scale1, shift1)
        h_BSD = self.self_attention(h_BSD, rotary, lengths_B)
        x_BSD, h_BSD = gated_residual_layer_norm_modulate(
            x_BSD, h_BSD, gate1, *self.cross_norm.modulation(x_BSD.shape[0])
        )
        x_BSD = x_BSD + self.cross_attention(h_BSD, text_BTD, image_BLD)

        h_BSI = self.mlp_in(layer_norm_modulate(x_BSD, scale2, shift2))
        return add_gated(x_BSD, gate2, self.mlp_out(nnx.gelu(h_BSI)))


class ImageEmbedding(nnx.Module):
    """Projects an image encoder's embeddings to the model width for cross-attention."""

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs):
        dim, width, linear = config.image_dim, config.width, linears(config, rngs)
        self.has_positions = bool(config.num_image_positions)
        if self.has_positions:
            shape = (config.num_image_positions, dim)
            dtype = jnp.dtype(config.param_dtype)
            self.positions = param(jnp.zeros(shape, dtype), "positions", "image")
        self.norm_in = LayerNorm(dim, axis="image", config=config, eps=_IMAGE_EPS)
        self.mlp_in = linear(dim, dim, ("image", "mlp"))
        self.mlp_out = linear(dim, width, ("mlp", "embed"))
        self.norm_out = LayerNorm(width, axis="width", config=config, eps=_IMAGE_EPS)

    def __call__(self, image: Float[Array, "b l j"]) -> Float[Array, "b l d"]:
        if self.has_positions:
            image += self.positions[...].astype(image.dtype)[None]
        h_BLJ = self.mlp_in(self.norm_in(image))
        return self.norm_out(self.mlp_out(nnx.gelu(h_BLJ, approximate=False)))


def modulation_table(count: int, config: WanConfig, rngs: nnx.Rngs) -> nnx.Param:
    """Creates the learned table that is added to the time-dependent modulations."""
    dtype = jnp.dtype(config.param_dtype)
    value = jax.random.normal(rngs.params(), (count, config.width), dtype)
    return param(value / config.width**0.5, "modulation", "width")
