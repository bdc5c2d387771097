"""AdamW with warm-up, clipping and parameter groups."""

import difflib
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxload.errors import InputError
from jaxload.training.config import OptimizerConfig, ParamGroup

_DECAYED = ("kernel", "lora_")
_NUM_SUGGESTIONS = 3


def learning_rate_schedule(config: OptimizerConfig) -> optax.Schedule:
    """Returns the learning-rate schedule of parameters that are in no group."""
    return _warm_up(config.learning_rate, config.num_warmup_steps)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Builds AdamW with clipping by the global gradient norm.

    The structure of the state does not depend on the groups: each moment is one tree
    like the parameters, with their shardings. `init` calls check_param_groups.
    """
    chain = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.chain(  # optax.adamw with a decay and a rate per parameter.
            optax.scale_by_adam(b1=config.beta1, b2=config.beta2),
            _add_weight_decay(config),
            _scale_by_learning_rate(config),
        ),
    )

    def init(params: optax.Params) -> optax.OptState:
        check_param_groups(config, params)
        return chain.init(params)

    def update(updates, state, params=None):
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes ints and floats.
            return chain.update(updates, state, params)

    return optax.GradientTransformation(init, update)


def param_name(path: tuple[Any, ...]) -> str:
    """Returns the dotted name of the parameter at a path in a tree of parameters.

    The last key of a path into an `nnx.State` leads from a variable to its array and is
    not part of the name.
    """
    if path and isinstance(path[-1], jax.tree_util.GetAttrKey):
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator=".")


def param_group_of(config: OptimizerConfig, name: str) -> ParamGroup:
    """Returns the group of a parameter, with its defaults filled in from `config`.

    Parameters that no pattern matches are in a group `*` with the values of `config`.
    """
    matching = (g for g in config.groups if fnmatchcase(name, g.pattern))
    group = next(matching, ParamGroup(pattern="*"))
    own_rate, own_decay = group.learning_rate >= 0, group.weight_decay >= 0
    return ParamGroup(
        pattern=group.pattern,
        learning_rate=group.learning_rate if own_rate else config.learning_rate,
        weight_decay=group.weight_decay if own_decay else config.weight_decay,
    )


def check_param_groups(config: OptimizerConfig, params: optax.Params) -> None:
    """Checks that each group has at least one trained parameter.

    Args:
        config: Config section `optimizer`.
        params: Tree of the trained parameters, or of their shapes.

    Raises:
        InputError: A pattern matches no parameter that earlier patterns do not match.
    """
    names = [param_name(path) for path, _ in jax.tree.leaves_with_path(params)]
    used = {param_group_of(config, name).pattern for name in names}
    for pattern in (group.pattern for group in config.groups):
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            raise InputError(
                f"optimizer.groups, pattern {pattern!r}: expected the name of a "
                f"trained parameter, got no match; nearest: {_nearest(pattern, names)}"
            )
        if pattern not in used:
            earlier = param_group_of(config, matching[0]).pattern
            raise InputError(
                f"optimizer.groups, pattern {pattern!r}: expected parameters that no "
                f"earlier pattern matches, got none; move it before {earlier!r}"
            )


def _nearest(pattern: str, names: list[str]) -> str:
    text = pattern.replace("*", "").strip(".")
    close = difflib.get_close_matches(text, names, n=_NUM_SUGGESTIONS, cutoff=0.0)
    return ", ".join(close)


def _warm_up(rate: float, num_steps: int) -> optax.Schedule:
    """Returns a linear warm-up whose first step has a learning rate above 0."""
    return lambda step: rate * jnp.minimum((step + 1) / (num_steps + 1), 1.0)


def _add_weight_decay(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns a transformation that adds weight decay to the update of each matrix."""

    def decayed(path: tuple[Any, ...], update: Any, param: Any) -> Any:
        name = param_name(path)
        decay = param_group_of(config, name).weight_decay
        return update + decay * param if decay and _is_matrix(name) else update

    return optax.stateless(
        lambda updates, params: jax.tree.map_with_path(decayed, updates, params)
    )


def _is_matrix(name: str) -> bool:
    # By name and not by rank: parameters of stacked blocks have an axis of layers.
    return any(part in name for part in _DECAYED)


def _scale_by_learning_rate(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns a transformation that scales each update by minus its learning rate."""

    def init(params: optax.Params) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(count=jnp.zeros((), jnp.int32))

    def update(updates, state, params=None):
        def scaled(path: tuple[Any, ...], update: Any) -> Any:
            rate = param_group_of(config, param_name(path)).learning_rate
            step_size = _warm_up(-rate, config.num_warmup_steps)(state.count)
            return jnp.asarray(step_size, update.dtype) * update

        count = optax.safe_increment(state.count)
        scaled_updates = jax.tree.map_with_path(scaled, updates)
        return scaled_updates, optax.ScaleByScheduleState(count=count)

    return optax.GradientTransformation(init, update)
