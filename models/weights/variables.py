"""A model's variables by path, and which of them files have."""

from typing import Any, cast

from flax import nnx

from jaxload.models.weights.names import ParameterPath


def variables_of(state: nnx.State[Any, Any]) -> dict[ParameterPath, Any]:
    """The variables of a state, or what stands in their place."""
    return cast(dict[ParameterPath, Any], dict(nnx.to_flat_state(state)))


def is_stored(variable: nnx.Variable) -> bool:
    """Whether files have this variable: adapters are merged into what they adapt."""
    return isinstance(variable, nnx.Param) and not isinstance(variable, nnx.LoRAParam)
