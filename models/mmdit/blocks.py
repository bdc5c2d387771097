"""The blocks of an MMDiT."""

# Shape suffixes: B batch, S video tokens, T text tokens, U both: S + T, D model width,
# I MLP width, N heads, K head width, E text width, W time width.

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxload.models.axes import constrain
from jaxload.models.embeddings import Rotary, rotate
from jaxload.models.layers import (
    ZEROS,
    LayerNorm,
    RMSNorm,
    add_gated,
    linears,
    merge_heads,
    run_stacked,
    split_heads,
    stack,
)
from jaxload.models.mmdit.config import MMDiTConfig
from jaxload.models.mmdit.keys import Keys
from jaxload.models.transformer_config import TIME_WIDTH
from jaxload.ops import (
    attention,
    gated_residual_layer_norm_modulate,
    layer_norm_modulate,
)

NUM_MODULATIONS = 6
"""Number of modulations: shift, scale and gate, for attention and for the MLP."""

_REFINER_MLP_RATIO = 4  # Fixed in HunyuanVideo, independently of mlp_width.


class RefinerAttention(nnx.Module):
    """Self-attention among the text tokens."""

    def __init__(self, config: MMDiTConfig, *, rngs: nnx.Rngs):
        width, linear = config.width, linears(config, rngs)
        self.num_heads = config.num_heads
        self.q = linear(width, width, ("embed", "heads"))
        self.k = linear(width, width, ("embed", "heads"))
        self.v = linear(width, width, ("embed", "heads"))
        self.out = linear(width, width, ("heads", "embed"))

    def __call__(
        self, h_BTD: Float[Array, "b t d"], key_lengths: Int[Array, " b"]
    ) -> Float[Array, "b t d"]:
        q, k, v = (
            split_heads(project(h_BTD), self.num_heads, "text_tokens")
            for project in (self.q, self.k, self.v)
        )
        return self.out(merge_heads(attention(q, k, v, key_lengths=key_lengths)))


class RefinerBlock(nnx.Module):
    """Self-attention and MLP over only the text, gated by time and pooled text."""

    def __init__(self, config: MMDiTConfig, *, rngs: nnx.Rngs):
        width = config.width
        linear = linears(config, rngs)
        self.norm1 = LayerNorm(width, axis="width", config=config)
        self.attention = RefinerAttention(config, rngs=rngs)
        self.norm2 = LayerNorm(width, axis="width", config=config)
        mlp_width = _REFINER_MLP_RATIO * width
        self.mlp_in = linear(width, mlp_width, ("embed", "mlp"))
        self.mlp_out = linear(mlp_width, width, ("mlp", "embed"))
        self.gates = linear(width, 2 * width, ("embed", "modulation"), float32=True)

    def __call__(
        self,
        text_BTD: Float[Array, "b t d"],
        condition_BD: Float[Array, "b d"],
        key_lengths: Int[Array, " b"],
    ) -> Float[Array, "b t d"]:
        text_BTD = constrain(text_BTD, "batch", "text_tokens", "width")
        condition_BD = constrain(condition_BD, "batch", "width")
        gate1, gate2 = jnp.split(self.gates(nnx.silu(condition_BD)), 2, axis=-1)
        h_BTD = self.attention(self.norm1(text_BTD), key_lengths)
        text_BTD, h_BTD = gated_residual_layer_norm_modulate(
            text_BTD, h_BTD, gate1, *self.norm2.modulation(text_BTD.shape[0])
        )
        h_BTD = self.mlp_out(nnx.silu(self.mlp_in(h_BTD)))
        return add_gated(text_BTD, gate2, h_BTD)


class TextRefiner(nnx.Module):
    """Projects text embeddings to the model width and refines them in a few blocks."""

    def __init__(self, config: MMDiTConfig, *, rngs: nnx.Rngs):
        width, dim = config.width, config.text_dim
        linear = linears(config, rngs)
        self.config = config
        self.time_in = linear(TIME_WIDTH, width, ("time", "embed"), float32=True)
        self.time_out = linear(width, width, ("embed", "width"), float32=True)
        self.pooled_in = linear(dim, width, ("text", "embed"), float32=True)
        self.pooled_out = linear(width, width, ("embed", "width"), float32=True)
        self.text_in = linear(dim, width, ("text", "embed"))
        self.blocks = stack(
            config.num_refiner_blocks,
            lambda rngs: RefinerBlock(config, rngs=rngs),
            rngs,
        )

    def __call__(
        self,
        text_BTE: Float[Array, "b t e"],
        mean_BE: Float[Array, "b e"],
        time_BW: Float[Array, "b w"],
        key_lengths: Int[Array, " b"],
    ) -> Float[Array, "b t d"]:
        condition_BD = self.time_out(nnx.silu(self.time_in(time_BW)))
        condition_BD += self.pooled_out(nnx.silu(self.pooled_in(mean_BE)))
        return run_stacked(
            self.blocks,
            lambda block, text_BTD, lengths_B: block(text_BTD, condition_BD, lengths_B),
            self.text_in(text_BTE),
            rows=key_lengths,
            remat=self.config.remat,
        )


class _Projections(nnx.Module):
    """Modulation and QKV projections, as in both double and single blocks."""

    def __init__(self, config: MMDiTConfig, *, num_modulations: int, rngs: nnx.Rngs):
        width, linear = config.width, linears(config, rngs)
        self.num_heads, self.num_modulations = config.num_heads, num_modulations
        self.modulation = linear(
            width,
            num_modulations * width,
            ("embed", "modulation"),
            float32=True,
            kernel_init=ZEROS,
        )
        self.q = linear(width, width, ("embed", "heads"), target="q")
        self.k = linear(width, width, ("embed", "heads"), target="k")
        self.v = linear(width, width, ("embed", "heads"), target="v")
        self.q_norm = RMSNorm(config.head_width, axis="head_width", config=config)
        self.k_norm = RMSNorm(config.head_width, axis="head_width", config=config)

    def modulations(self, condition_BD: Float[Array, "b d"]) -> list[Array]:
        """Returns shifts, scales and gates in order of use."""
        modulation = self.modulation(nnx.silu(condition_BD))
        return jnp.split(modulation, self.num_modulations, axis=-1)

    def qkv(
        self, h_BSD: Float[Array, "b s d"], rotary: Rotary | None
    ) -> tuple[Array, Array, Array]:
        """Returns queries, keys, values `[B, S, N, K]`; `rotary` is None for text."""
        tokens = "text_tokens" if rotary is None else "tokens"
        q, k, v = (
            split_heads(project(h_BSD), self.num_heads, tokens)
            for project in (self.q, self.k, self.v)
        )
        q, k = self.q_norm(q), self.k_norm(k)
        if rotary is None:
            return q, k, v
        return rotate(q, rotary), rotate(k, rotary), v


class Stream(_Projections):
    """Weights of one stream, text or video, of a double block."""

    def __init__(self, config: MMDiTConfig, *, rngs: nnx.Rngs):
        super().__init__(config, num_modulations=NUM_MODULATIONS, rngs=rngs)
        width, mlp_width = config.width, config.mlp_width
        linear = linears(config, rngs)
        self.out = linear(width, width, ("heads", "embed"), target="out")
        self.mlp_in = linear(width, mlp_width, ("embed", "mlp"), target="mlp_in")
        self.mlp_out = linear(mlp_width, width, ("mlp", "embed"), target="mlp_out")

    def finish(
        self,
        x_BSD: Float[Array, "b s d"],
        h_BSNK: Float[Array, "b s n k"],
        modulations: tuple[Array, ...],
    ) -> Float[Array, "b s d"]:
        """Adds the gated outputs of attention and of the MLP to the residual stream."""
        gate1, shift2, scale2, gate2 = modulations
        x_BSD, h_BSD = gated_residual_layer_norm_modulate(
            x_BSD, self.out(merge_heads(h_BSNK)), gate1, scale2, shift2
        )
        return add_gated(x_BSD, gate2, self.mlp_out(nnx.gelu(self.mlp_in(h_BSD))))


class DoubleBlock(nnx.Module):
    """Joint attention of text and video, with separate weights for each."""

    def __init__(self, config: MMDiTConfig, *, rngs: nnx.Rngs):
        self.video = Stream(config, rngs=rngs)
        self.text = Stream(config, rngs=rngs)

    def __call__(
        self,
        video_BSD: Float[Array, "b s d"],
        text_BTD: Float[Array, "b t d"],
        condition_BD: Float[Array, "b d"],
        rotary: Rotary,
        keys: Keys,
    ) -> tuple[Float[Array, "b s d"], Float[Array, "b t d"]]:
        video_BSD = constrain(video_BSD, "batch", "tokens", "width")
        # Without these two constraints, XLA gathers the gradients of text and
        # condition over the batch, in every block.
        text_BTD = constrain(text_BTD, "batch", "text_tokens", "width")
        condition_BD = constrain(condition_BD, "batch", "width")
        qkv, later = [], []
        for stream, x, turn in (
            (self.video, video_BSD, rotary),
            (self.text, text_BTD, None),
        ):
            shift1, scale1, *rest = stream.modulations(condition_BD)
            qkv.append(stream.qkv(layer_norm_modulate(x, scale1, shift1), turn))
            later.append(tuple(rest))

        q, k, v = (jnp.concatenate(parts, axis=1) for parts in zip(*qkv, strict=True))
        k, v = keys.arrange(k), keys.arrange(v)
        h_BUNK = attention(q, k, v, key_lengths=keys.lengths_B)
        num_tokens = video_BSD.shape[1]
        return (
            self.video.finish(video_BSD, h_BUNK[:, :num_tokens], later[0]),
            self.text.finish(text_BTD, h_BUNK[:, num_tokens:], later[1]),
        )


class SingleBlock(_Projections):
    """Parallel attention and MLP over video and text as one sequence."""

    def __init__(self, config: MMDiTConfig, *, rngs: nnx.Rngs):
        super().__init__(config, num_modulations=3, rngs=rngs)
        width, mlp_width = config.width, config.mlp_width
        linear = linears(config, rngs)
        self.mlp_in = linear(width, mlp_width, ("embed", "mlp"), target="mlp_in")
        self.out = linear(width + mlp_width, width, ("mlp", "embed"), target="out")

    def __call__(
        self,
        x_BUD: Float[Array, "b u d"],
        condition_BD: Float[Array, "b d"],
        rotary: Rotary,
        keys: Keys,
    ) -> Float[Array, "b u d"]:
        x_BUD = constrain(x_BUD, "batch", "tokens", "width")
        condition_BD = constrain(condition_BD, "batch", "width")
        shift, scale, gate = self.modulations(condition_BD)
        h_BUD = layer_norm_modulate(x_BUD, scale, shift)
        q, k, v = self.qkv(h_BUD, rotary)
        k, v = keys.arrange(k), keys.arrange(v)
        attended_BUD = merge_heads(attention(q, k, v, key_lengths=keys.lengths_B))
        h_BUI = nnx.gelu(self.mlp_in(h_BUD))
        return add_gated(
            x_BUD, gate, self.out(jnp.concatenate([attended_BUD, h_BUI], axis=-1))
        )
