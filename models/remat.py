"""What a block keeps for its backward pass, and what it computes again."""

from collections.abc import Callable
from typing import Any, Literal

import jax

from jaxload.ops.attention import SAVED

Remat = Literal["none", "attention", "full"]
"""Policies by name, from most memory to least:

`none` keeps all but the inside of norms and activations. `attention` keeps a block's
input and what attention among all tokens gave, so that the part that is quadratic in
them runs once. `full` keeps its input alone.
"""


def rematerialized(block: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """Returns the function with its intermediate results kept as the policy says."""
    if remat == "none":
        return block
    policies = jax.checkpoint_policies
    policy = {
        "attention": policies.save_only_these_names(SAVED),
        "full": policies.nothing_saveable,
    }[remat]
    # Blocks run in a scan, which keeps XLA from merging the two computations anyway.
    return jax.checkpoint(block, policy=policy, prevent_cse=False)
