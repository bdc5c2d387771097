"""A model family in one file: a small transformer that is conditioned on mean text."""

# Shape suffixes: B batch, S tokens, P channels of a patch, D model width, T text
# tokens, E text width.

import dataclasses
import math
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxload.balance.architecture import mlp_matrices, patch_flops, square_matrix
from jaxload.balance.flops import Flops, Matrix
from jaxload.models import Family, register
from jaxload.models.embeddings import (
    Grid,
    Rotary,
    rope_widths,
    rotary_table,
    rotate,
    row_lengths,
    timestep_embedding,
    without_padding,
)
from jaxload.models.inputs import check_inputs
from jaxload.models.layers import (
    ZEROS,
    linears,
    merge_heads,
    run_stacked,
    split_heads,
    stack,
)
from jaxload.models.transformer import Transformer
from jaxload.models.transformer_config import TIME_WIDTH, TransformerConfig
from jaxload.ops import attention, layer_norm_modulate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig(TransformerConfig):
    """Sizes of a toy transformer."""

    kind: Literal["toy"] = "toy"
    """Model family; selects the transformer that is built."""

    depth: int
    """Number of blocks. More adds capacity; compute and memory grow in proportion."""


class ToyBlock(nnx.Module):
    """Self-attention and an MLP, both modulated by time and text."""

    def __init__(self, config: ToyConfig, *, rngs: nnx.Rngs):
        width, mlp_width, linear = config.width, config.mlp_width, linears(config, rngs)
        self.num_heads = config.num_heads
        self.modulation = linear(
            width, 2 * width, ("embed", "modulation"), float32=True, kernel_init=ZEROS
        )
        self.q = linear(width, width, ("embed", "heads"), target="q")
        self.k = linear(width, width, ("embed", "heads"), target="k")
        self.v = linear(width, width, ("embed", "heads"), target="v")
        self.out = linear(width, width, ("heads", "embed"), target="out")
        self.mlp_in = linear(width, mlp_width, ("embed", "mlp"), target="mlp_in")
        self.mlp_out = linear(mlp_width, width, ("mlp", "embed"), target="mlp_out")

    def __call__(
        self,
        x_BSD: Float[Array, "b s d"],
        condition_BD: Float[Array, "b d"],
        rotary: Rotary,
        lengths_B: Int[Array, " b"] | None,
    ) -> Float[Array, "b s d"]:
        scale_BD, shift_BD = jnp.split(self.modulation(condition_BD), 2, axis=-1)
        h_BSD = layer_norm_modulate(x_BSD, scale_BD, shift_BD)
        q, k, v = (
            split_heads(layer(h_BSD), self.num_heads)
            for layer in (self.q, self.k, self.v)
        )
        q, k = rotate(q, rotary), rotate(k, rotary)
        h_BSNK = attention(q, k, v, key_lengths=lengths_B)
        x_BSD = x_BSD + self.out(merge_heads(h_BSNK))
        h_BSD = self.mlp_in(layer_norm_modulate(x_BSD, scale_BD, shift_BD))
        return x_BSD + self.mlp_out(nnx.gelu(h_BSD))


class ToyTransformer(Transformer):
    """Predicts the flow velocity, from latent to noise, given text embeddings."""

    config: ToyConfig

    def __init__(self, config: ToyConfig, *, rngs: nnx.Rngs):
        width, linear = config.width, linears(config, rngs)
        patch = math.prod(config.patch) * config.channels
        self.config = config
        self.patch_in = linear(patch, width, ("patch", "embed"))
        self.time_in = linear(TIME_WIDTH, width, ("time", "embed"), float32=True)
        self.text_in = linear(config.text_dim, width, ("text", "embed"), float32=True)
        self.blocks = stack(
            config.depth, lambda rngs: ToyBlock(config, rngs=rngs), rngs
        )
        self.patch_out = linear(
            width, patch, ("embed", "patch"), float32_out=True, kernel_init=ZEROS
        )

    def velocity(
        self,
        tokens_BSP: Float[Array, "b s p"],
        grid: Grid,
        timestep_B: Float[Array, " b"],
        text_BTE: Float[Array, "b t e"],
    ) -> Float[Array, "b s out"]:
        """Returns the velocity of tokens, in float32."""
        config = self.config
        check_inputs("ToyTransformer", config, tokens_BSP, grid, timestep_B, text_BTE)
        lengths_B = row_lengths(grid)
        tokens_BSP = without_padding(tokens_BSP, lengths_B)
        widths = rope_widths(config.head_width)
        rotary = rotary_table(grid, tokens_BSP.shape[1], widths, theta=10_000.0)
        time_BD = self.time_in(timestep_embedding(timestep_B))
        text_BD = self.text_in(text_BTE.astype(jnp.float32).mean(axis=1))
        condition_BD = nnx.silu(time_BD + text_BD)
        x_BSD = run_stacked(
            self.blocks,
            lambda block, x_BSD, lengths_B: block(
                x_BSD, condition_BD, rotary, lengths_B
            ),
            self.patch_in(tokens_BSP.astype(config.compute_dtype)),
            rows=lengths_B,
            remat=config.remat,
        )
        return self.patch_out(x_BSD)


@dataclasses.dataclass(frozen=True)
class ToyArchitecture:
    """Matmuls of a toy transformer."""

    config: ToyConfig

    def embeddings(self) -> Flops:
        """Returns the forward FLOPs outside of the blocks."""
        config = self.config
        patches = patch_flops(config.width, config.patch, 2 * config.channels)
        conditions = 2 * config.width * (TIME_WIDTH + config.text_dim)
        return patches + Flops(per_sample=conditions)

    def matrices(self) -> list[Matrix]:
        """Returns the weight matrices of all blocks."""
        width, depth = self.config.width, self.config.depth
        targets = ("q", "k", "v", "out")
        modulation = Matrix(
            rows=width, columns=2 * width, per_sample=depth, behind_adapters=False
        )
        return [
            *(square_matrix(width, target, per_token=depth) for target in targets),
            *mlp_matrices(width, self.config.mlp_width, per_token=depth),
            modulation,
        ]

    def cross_attention(self) -> Flops:
        """Returns the forward FLOPs of attention to keys outside of the sequence."""
        return Flops()

    def attention(self) -> Flops:
        """Returns the forward FLOPs of attention within the sequence."""
        return self.config.depth * Flops(per_token_squared=4 * self.config.width)


FAMILY = Family(
    name="toy",
    config=ToyConfig,
    model=lambda: ToyTransformer,
    presets={
        "toy-tiny": ToyConfig(
            width=32,
            depth=2,
            num_heads=2,
            mlp_width=64,
            text_dim=16,
            num_text_tokens=12,
            compute_dtype="float32",
        )
    },
    flops=ToyArchitecture,
)

register(FAMILY)
