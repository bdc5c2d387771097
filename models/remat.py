"""What a block keeps for its backward pass, and what it computes again."""

from collections.abc import Callable
from typing import Any

import jax

from jaxload.ops.attention import SAVED as ATTENTION

# What blocks call their results, for `jax.ad_checkpoint.checkpoint_name`.
LINEAR = "linear"
CROSS_ATTENTION = "cross_attention"  # As large as ATTENTION, and cheap to run again.

_KEPT: dict[str, tuple[str, ...]] = {
    "none": (LINEAR, CROSS_ATTENTION, ATTENTION),
    "attention": (ATTENTION,),
    "full": (),
}
_KEPT["auto"] = _KEPT["none"]  # Where no plan has chosen.


def rematerialized(block: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Returns the function with its intermediate results kept as the policy says."""
    policy = jax.checkpoint_policies.save_only_these_names(*_KEPT[remat])
    # Blocks run in a scan, which keeps XLA from merging the two computations anyway.
    return jax.checkpoint(block, policy=policy, prevent_cse=False)
