"""Rematerialization policies: the results that a block saves for its backward pass."""

from collections.abc import Callable
from typing import Any

import jax

from jaxload.ops.attention import SAVED as ATTENTION

# Names that blocks give their results, for `jax.ad_checkpoint.checkpoint_name`.
LINEAR = "linear"
CROSS_ATTENTION = "cross_attention"  # As large as ATTENTION, but cheap to recompute.

_KEPT: dict[str, tuple[str, ...]] = {
    "none": (LINEAR, CROSS_ATTENTION, ATTENTION),
    "attention": (ATTENTION,),
    "full": (),
}
_KEPT["auto"] = _KEPT["none"]  # Used if no plan has chosen a policy.


def rematerialized(block: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Wraps a function so that it saves only the results that the policy names."""
    policy = jax.checkpoint_policies.save_only_these_names(*_KEPT[remat])
    # Blocks run in a scan, which already keeps XLA from merging the recomputation with
    # the original by CSE.
    return jax.checkpoint(block, policy=policy, prevent_cse=False)
