"""Variables of a model by path, and a test for variables that files hold."""

from typing import Any, cast

from flax import nnx

from jaxload.models.weights.names import ParameterPath


def variables_of(state: nnx.State[Any, Any]) -> dict[ParameterPath, Any]:
    """Returns the leaves of a state by path: variables, or shardings of variables."""
    return cast(dict[ParameterPath, Any], dict(nnx.to_flat_state(state)))


def is_stored(variable: nnx.Variable) -> bool:
    """Returns True for all parameters except adapters, which are saved merged."""
    return isinstance(variable, nnx.Param) and not isinstance(variable, nnx.LoRAParam)
