"""Names of the axes of parameters and activations, by which they are sharded.

A model says what each axis is; what lies across which devices, the trainer says, with
rules from these names to the axes of its mesh (jaxload.parallel.sharding).

| name | axis |
|---|---|
| layers | blocks that are stacked and scanned |
| embed | the model's width, in a matrix |
| width | the model's width, in a vector or an activation |
| heads | attention heads, or all of their channels |
| mlp | the hidden width of an MLP |
| modulation | shifts, scales and gates |
| patch, text, time, image, pooled | what enters the model, and a patch that leaves it |
| rank | the small width of a LoRA |
| head_width, positions | channels of one head; places of image tokens |
| batch, tokens, text_tokens | axes of activations only |
"""

import jax
from flax import nnx
from flax.core.spmd import get_logical_axis_rules
from jax.sharding import PartitionSpec


def param(
    value: jax.Array, *axes: str, kind: type[nnx.Param] = nnx.Param
) -> nnx.Param[jax.Array]:
    """A parameter with named axes.

    Not sharded when it is made: modules are also made where there is no mesh.
    """
    return kind(value, out_sharding=axes, eager_sharding=False)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Asks XLA to lay out an activation by the rules in force; none, nothing asked."""
    rules = dict(get_logical_axis_rules())
    if not rules:
        return x
    spec = PartitionSpec(*(axis and rules.get(axis) for axis in axes))
    return jax.lax.with_sharding_constraint(x, spec)
