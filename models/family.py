"""The record of a model family, through which jaxload uses the family."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from jaxload.balance.architecture import Architecture
from jaxload.models.transformer_config import TransformerConfig

if TYPE_CHECKING:
    from jaxload.models.transformer import Transformer
    from jaxload.models.weights.names import WeightNames


def _none(config: TransformerConfig) -> Mapping[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A config class, and functions of its configs.

    `model` and `weights` are functions without arguments, so that code that needs only
    configs does not import JAX.
    """

    name: str
    """Value of the field `kind` in the family's configs."""

    config: type[TransformerConfig]
    """Config class, a frozen dataclass with the field `kind: Literal[name] = name`."""

    model: "Callable[[], type[Transformer]]"
    """Imports and returns the model class, which takes `(config, *, rngs)`."""

    presets: Mapping[str, TransformerConfig]
    """Configs by name, for `--set model=NAME`; names are unique among all families."""

    flops: Callable[[Any], Architecture]
    """Returns the matmuls of a config's model, from which FLOPs are counted."""

    form: Literal["length", "grid"] = "grid"
    """Form of the micro-batches, unless balance.form names one. `length` requires a
    model that takes a grid for each sample, and ignores the padding after its tokens.
    """

    weights: "Callable[[], WeightNames] | None" = None
    """Imports and returns the tensor names of weight files; None if there are none."""

    required_to_train: Callable[[Any], Mapping[str, Any]] = _none
    """Returns the fields of a config, with values, that training requires: with them,
    the model needs only latents and text, as datasets hold them."""

    extra_inputs: Callable[[Any], Mapping[str, tuple[int, ...]]] = _none
    """Returns the shapes, without the batch axis, of the inputs that a config's model
    takes beyond latents, timesteps and text, by argument name."""
