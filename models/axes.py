"""Logical axis names of parameters and activations, used for sharding.

A model names each axis. The trainer maps these names to mesh axes with the rules in
jaxload.parallel.sharding_rules.

| name | axis |
|---|---|
| layers | blocks, stacked and scanned |
| embed | the model's width, in a matrix |
| width | the model's width, in a vector or an activation |
| heads | attention heads, or all of their channels |
| mlp | the hidden width of an MLP |
| modulation | shifts, scales and gates |
| patch, text, time, image, pooled | channels of the inputs, and of the output patch |
| rank | the small width of a LoRA |
| head_width, positions | channels of one head; positions of image tokens |
| batch, tokens, text_tokens | axes of activations only |
"""

import jax
from flax import nnx
from flax.core.spmd import get_logical_axis_rules
from jax.sharding import PartitionSpec


def param(
    value: jax.Array, *axes: str, variable: type[nnx.Param] = nnx.Param
) -> nnx.Param[jax.Array]:
    """Creates a parameter with a logical name for each of its axes.

    The parameter is not sharded here, because modules are also created without a mesh.

    Args:
        value: Initial value.
        axes: Logical names, which sharding rules map to axes of a mesh.
        variable: Class of the parameter, such as `nnx.LoRAParam`.
    """
    return variable(value, out_sharding=axes, eager_sharding=False)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrains the sharding of an activation by the current rules, if any are set."""
    rules = dict(get_logical_axis_rules())
    if not rules:
        return x
    spec = PartitionSpec(*(axis and rules.get(axis) for axis in axes))
    return jax.lax.with_sharding_constraint(x, spec)
