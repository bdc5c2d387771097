"""Compiles our operations and their JAX references for H100s, without an H100.

    python -m benchmarks.h100 kernels SHAPE DTYPE     # e.g. 1x32760x1536 bfloat16
    python -m benchmarks.h100 pass SHAPE DTYPE
    python -m benchmarks.h100 block NUM_DEVICES TOKENS WIDTH

Prints JSON. `kernels`: bytes read and written by each kernel that XLA generates for the
plain JAX form of layer_norm_modulate. `pass` and `block`: temporary bytes of a forward
and backward pass, of layer_norm_modulate or of a transformer block, with our kernels
and with the plain forms. Needs JAX's CUDA plugin and a special environment; see `run`.
"""

import functools
import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled

from jaxload import targets
from jaxload.models import WanConfig
from jaxload.models.wan import blocks as wan_blocks
from jaxload.models.wan.blocks import NUM_MODULATIONS, WanBlock
from jaxload.ops.gated_residual_layer_norm_modulate import (
    gated_residual_layer_norm_modulate_reference,
)
from jaxload.ops.layer_norm_modulate import (
    layer_norm_modulate,
    layer_norm_modulate_reference,
)
from jaxload.targets.child_process import run_python


def run(*arguments: str) -> Any:
    """Runs this module in a process that can compile for GPUs; returns its report."""
    return json.loads(run_python("-m", "benchmarks.h100", *arguments))


# Bytes that kernels read and write.


def _plain_kernels(shape: tuple[int, int, int], dtype: str) -> dict[str, list[Any]]:
    """Returns XLA's kernels for both plain forms, by pass; see `_kernels`."""
    x, scale = _specs(shape, dtype)
    kernels = {}
    for prefix, form, arguments, cotangents in (
        ("", layer_norm_modulate_reference, (x, scale, scale), x),
        (
            "gated ",
            gated_residual_layer_norm_modulate_reference,
            (x, x, scale, scale, scale),
            (x, x),
        ),
    ):

        def backward(arguments, cotangents, form=form):
            return jax.vjp(form, *arguments)[1](cotangents)

        kernels[f"{prefix}forward"] = _kernels(_compile(form, *arguments))
        kernels[f"{prefix}backward"] = _kernels(
            _compile(backward, arguments, cotangents)
        )
    return kernels


def _specs(shape: tuple[int, int, int], dtype: str) -> list[jax.ShapeDtypeStruct]:
    """Returns the types of x and scale on one H100."""
    batch, _, width = shape
    mesh = Mesh(np.array(targets.H100.devices(1)), ("device",))
    return [
        jax.ShapeDtypeStruct(s, dtype, sharding=NamedSharding(mesh, P()))
        for s in (shape, (batch, width))
    ]


def _compile(function: Any, *arguments: Any) -> Compiled:
    return jax.jit(function).lower(*arguments).compile()


# Instructions of a scheduled program that launch no kernel.
_MOVE_NOTHING = ("bitcast", "constant", "get-tuple-element", "parameter", "tuple")


def _kernels(compiled: Compiled) -> list[dict[str, dict[str, int]]]:
    """Returns the bytes that each kernel of a program reads and writes.

    Bytes are under "reads" and "writes", by type and shape of the array. Each array
    counts once per kernel, as if every kernel started with an empty, unlimited cache.
    """
    text = compiled.as_text() or ""
    entry = text[text.index("\nENTRY ") :]
    types: dict[str, str] = {}
    kernels = []
    for name, result, opcode, operands in re.findall(
        r"^\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*?)\)", entry, re.MULTILINE
    ):
        types[name] = result
        if opcode not in _MOVE_NOTHING:
            read = " ".join(types[o] for o in re.findall(r"%([\w.-]+)", operands))
            kernels.append({"reads": _num_bytes(read), "writes": _num_bytes(result)})
    return kernels


def _num_bytes(types: str) -> dict[str, int]:
    """Returns the bytes of arrays in types such as `(bf16[2,3]{1,0}, f32[3]{0})`."""
    sizes: dict[str, int] = {}
    for short, dims in re.findall(r"\b([a-z]+\d+)\[([\d,]*)\]", types):
        dtype = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[short]
        count = math.prod(int(size) for size in dims.split(",") if size)
        array = f"{short}[{dims}]"
        sizes[array] = sizes.get(array, 0) + count * jnp.dtype(dtype).itemsize
    return sizes


# Temporary bytes.


def _describe(compiled: Compiled) -> dict[str, Any]:
    memory = compiled.memory_analysis()
    assert memory is not None
    names = re.findall(r'custom_call_target="(jaxload_\w+)"', compiled.as_text() or "")
    return {"temporary_bytes": memory.temp_size_in_bytes, "targets": sorted(set(names))}


def _pass(shape: tuple[int, int, int], dtype: str) -> dict[str, Any]:
    """Describes a forward and backward pass of the operation, in both forms."""
    x, scale = _specs(shape, dtype)

    def value_and_grads(form, x, scale, shift, dy):
        y, vjp = jax.vjp(form, x, scale, shift)
        return y, vjp(dy)

    forms = {"kernel": layer_norm_modulate, "plain": layer_norm_modulate_reference}
    return {
        name: _describe(
            _compile(functools.partial(value_and_grads, form), x, scale, scale, x)
        )
        for name, form in forms.items()
    }


def _block(num_devices: int, tokens: int, width: int) -> dict[str, Any]:
    """Describes a forward and backward pass of a block, in both forms."""
    report = {"kernel": _describe(_compile_block(num_devices, tokens, width))}
    # Replaces our kernels by the plain forms, which JAX differentiates.
    wan_blocks.layer_norm_modulate = layer_norm_modulate_reference
    wan_blocks.gated_residual_layer_norm_modulate = (
        gated_residual_layer_norm_modulate_reference
    )
    report["plain"] = _describe(_compile_block(num_devices, tokens, width))
    return report


def _linear_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    key_lengths: jax.Array | None = None,
    name: str = "",
) -> jax.Array:
    """Replaces attention with a cheap function that takes linear memory.

    Like flash attention, the function saves little but its operands. Scores of all
    pairs of tokens would dominate the memory.
    """
    k, v = (
        jnp.tanh(array.astype(jnp.float32)).mean(axis=1, keepdims=True)
        for array in (k, v)
    )
    return q * k.astype(q.dtype) + v.astype(q.dtype)


def _compile_block(num_devices: int, tokens: int, width: int) -> Compiled:
    """Compiles the gradients of a block, with one sample per device."""
    wan_blocks.attention = _linear_attention
    mesh = Mesh(np.array(targets.H100.devices(num_devices)), ("data",))
    # A block with the proportions of Wan 2.1.
    config = WanConfig(
        width=width,
        depth=1,
        num_heads=width // 128,
        mlp_width=width * 35 // 6,
        text_dim=4096,
        num_text_tokens=512,
    )
    block = nnx.eval_shape(lambda: WanBlock(config, rngs=nnx.Rngs(0)))
    structure, parameters = nnx.split(block)

    def spec(sharding: P, *shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            shape, dtype, sharding=NamedSharding(mesh, sharding)
        )

    @functools.partial(jax.grad, argnums=(0, 1, 2, 3))
    def gradients(parameters, x, time, text, rotary, dy):
        y = nnx.merge(structure, parameters)(x, time, text, None, rotary, None)
        return jnp.vdot(y, dy).astype(jnp.float32)

    x = spec(P("data"), num_devices, tokens, width)
    table = spec(P(), 1, tokens, config.head_width // 2, dtype="float32")
    return _compile(
        gradients,
        jax.tree.map(lambda p: spec(P(), *p.shape, dtype=p.dtype), parameters),
        x,
        spec(P("data"), num_devices, NUM_MODULATIONS, width, dtype="float32"),
        spec(P("data"), num_devices, config.num_text_tokens, width),
        (table, table),
        x,
    )


def main(argv: Sequence[str]) -> int:
    """Runs `python -m benchmarks.h100`; returns the exit code."""
    what, *arguments = argv
    if what == "block":
        num_devices, tokens, width = map(int, arguments)
        report = _block(num_devices, tokens, width)
    else:
        batch, tokens, width = map(int, arguments[0].split("x"))
        function = {"kernels": _plain_kernels, "pass": _pass}[what]
        report = function((batch, tokens, width), arguments[1])
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
