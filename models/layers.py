"""Layers that all transformers share."""

# Shape suffixes: B batch, S tokens, D width, N heads, K head width.

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxload.models.axes import constrain, param
from jaxload.models.remat import LINEAR, rematerialized
from jaxload.models.transformer_config import LoraTarget, TransformerConfig
from jaxload.ops import Adapter, gate_tokens, layer_norm_modulate, linear, rms_norm

Carry = TypeVar("Carry")
Initializer = Callable[..., Any]
XAVIER = nnx.initializers.xavier_uniform()
ZEROS = nnx.initializers.zeros

EPS = 1e-6
"""Default epsilon of norms, added to the variance or the mean square."""


class Linear(nnx.Module):
    """Linear layer with named axes and, if the config targets it, a LoRA adapter."""

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        axes: tuple[str, str],
        config: TransformerConfig,
        target: LoraTarget | None = None,
        float32: bool = False,
        float32_out: bool = False,
        kernel_init: Initializer = XAVIER,
        rngs: nnx.Rngs,
    ):
        param_dtype = jnp.dtype(config.param_dtype)
        self.dtype = jnp.dtype(jnp.float32 if float32 else config.compute_dtype)
        self.out_dtype = jnp.dtype(jnp.float32) if float32_out else self.dtype
        shape = (in_width, out_width)
        self.kernel = param(kernel_init(rngs.params(), shape, param_dtype), *axes)
        bias_axis = "width" if axes[1] == "embed" else axes[1]
        self.bias = param(jnp.zeros(out_width, param_dtype), bias_axis)
        self.has_lora = bool(config.lora_rank) and target in config.lora_targets
        if self.has_lora:
            self._add_lora(shape, axes, config, rngs)

    def _add_lora(
        self,
        shape: tuple[int, int],
        axes: tuple[str, str],
        config: TransformerConfig,
        rngs: nnx.Rngs,
    ) -> None:
        rank, (in_width, out_width) = config.lora_rank, shape
        self.lora_scale = config.lora_alpha / rank
        he_uniform = nnx.initializers.he_uniform()
        down = he_uniform(rngs.params(), (in_width, rank), jnp.float32)
        self.lora_a = param(down, axes[0], "rank", variable=nnx.LoRAParam)
        # Zero, so that an untrained adapter does not change the output.
        up = jnp.zeros((rank, out_width), jnp.float32)
        self.lora_b = param(up, "rank", axes[1], variable=nnx.LoRAParam)

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b e"]:
        adapter = None
        if self.has_lora:
            adapter = Adapter(self.lora_a[...], self.lora_b[...], self.lora_scale)
        return linear(
            x,
            self.kernel[...],
            self.bias[...],
            adapter=adapter,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            name=LINEAR,
        )


class RMSNorm(nnx.Module):
    """`x / rms(x) * scale` over the last axis, computed in float32."""

    def __init__(self, width: int, *, axis: str, config: TransformerConfig):
        dtype = jnp.dtype(config.param_dtype)
        self.scale = param(jnp.ones(width, dtype), axis)

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        return rms_norm(x, self.scale[...], eps=EPS)


class LayerNorm(nnx.Module):
    """Layer norm with a learned scale and bias."""

    def __init__(
        self, width: int, *, axis: str, config: TransformerConfig, eps: float = EPS
    ):
        dtype = jnp.dtype(config.param_dtype)
        self.scale = param(jnp.ones(width, dtype), axis)
        self.bias = param(jnp.zeros(width, dtype), axis)
        self.eps = eps

    def __call__(self, x_BSD: Float[Array, "b s d"]) -> Float[Array, "b s d"]:
        scale_BD, shift_BD = self.modulation(x_BSD.shape[0])
        return layer_norm_modulate(x_BSD, scale_BD, shift_BD, eps=self.eps)

    def modulation(self, batch: int) -> tuple[Array, Array]:
        """Returns scale - 1 and shift, `[B, D]`, as layer_norm_modulate takes them."""
        scale_D, shift_D = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        shape = (batch, *scale_D.shape)
        return (
            jnp.broadcast_to(scale_D[None] - 1.0, shape),
            jnp.broadcast_to(shift_D[None], shape),
        )


def add_gated(
    x_BSD: Float[Array, "b s d"],
    gate_BD: Float[Array, "b d"],
    h_BSD: Float[Array, "b s d"],
) -> Float[Array, "b s d"]:
    """Returns `x + gate * h`, computed in float32, in the dtype of x."""
    gate_BD, h_BSD = gate_BD.astype(jnp.float32), h_BSD.astype(jnp.float32)
    h_BSD = gate_tokens(h_BSD, gate_BD)
    return (x_BSD.astype(jnp.float32) + h_BSD).astype(x_BSD.dtype)


def linears(config: TransformerConfig, rngs: nnx.Rngs) -> Callable[..., Linear]:
    """Returns a factory of Linear layers: `(in_width, out_width, axes, **options)`."""

    def create(in_width: int, out_width: int, axes: tuple[str, str], **options):
        return Linear(
            in_width, out_width, axes=axes, config=config, rngs=rngs, **options
        )

    return create


def split_heads(x_BSD: Array, num_heads: int, tokens: str = "tokens") -> Array:
    """Splits channels into heads: `[B, S, N, K]`, sharded by the axis name `tokens`."""
    x_BSNK = x_BSD.reshape(*x_BSD.shape[:2], num_heads, -1)
    return constrain(x_BSNK, "batch", tokens, "heads", None)


def merge_heads(x_BSNK: Array, tokens: str = "tokens") -> Array:
    """Merges heads into channels: `[B, S, N * K]`; inverts `split_heads`."""
    # Without this constraint, XLA may shard heads like the rows of the next matrix,
    # which FSDP shards.
    x_BSNK = constrain(x_BSNK, "batch", tokens, "heads", None)
    return x_BSNK.reshape(*x_BSNK.shape[:2], -1)


def stack(
    depth: int, create: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs
) -> nnx.Module:
    """Creates `depth` blocks as one module, with parameters stacked on a first axis."""
    vmap = nnx.vmap(create, transform_metadata={nnx.PARTITION_NAME: "layers"})
    return nnx.split_rngs(splits=depth)(vmap)(rngs)


def run_stacked(
    blocks: nnx.Module,
    run: Callable[[Any, Carry, Any], Carry],
    x: Carry,
    *,
    rows: Any = None,
    remat: str,
) -> Carry:
    """Runs stacked blocks one after the other.

    A scan over the blocks traces and compiles a single block, at any depth.

    Args:
        blocks: Blocks from `stack`.
        run: Function (block, x, rows) that runs one block.
        x: Activations before the first block.
        rows: Integers about each row that blocks mask by, such as its length. The scan
            carries them, because JAX computes whatever depends only on constants of a
            loop before the loop: masks would be read from memory in full size.
        remat: Remat policy of each block.
    """
    graphdef, params = nnx.split(blocks)

    def body(carry: tuple[Carry, Any], params: nnx.State) -> tuple[Carry, Any]:
        x, rows = carry
        return run(nnx.merge(graphdef, params), x, rows), rows

    body = rematerialized(body, remat)
    (x, _), _ = jax.lax.scan(
        lambda carry, params: (body(carry, params), None), (x, rows), params
    )
    return x
