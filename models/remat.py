"""What a block keeps for its backward pass, and what it computes again."""

from collections.abc import Callable
from typing import Any, Literal

import jax

from jaxload.ops.attention import SAVED as ATTENTION

Remat = Literal["none", "attention", "full"]
"""Policies by name, from most memory to least:

`none` keeps what linear layers and attention gave, so that no matmul runs twice. Norms,
rotations and activations are cheaper to compute again than to write and to read.
`attention` keeps a block's input and what attention among all tokens gave, so that the
part that is quadratic in them runs once. `full` keeps its input alone.
"""

# What blocks call their results, for `jax.ad_checkpoint.checkpoint_name`.
LINEAR = "linear"
CROSS_ATTENTION = "cross_attention"  # As large as ATTENTION, and cheap to run again.

_KEPT: dict[Remat, tuple[str, ...]] = {
    "none": (LINEAR, CROSS_ATTENTION, ATTENTION),
    "attention": (ATTENTION,),
    "full": (),
}


def rematerialized(block: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """Returns the function with its intermediate results kept as the policy says."""
    policy = jax.checkpoint_policies.save_only_these_names(*_KEPT[remat])
    # Blocks run in a scan, which keeps XLA from merging the two computations anyway.
    return jax.checkpoint(block, policy=policy, prevent_cse=False)
