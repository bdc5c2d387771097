"""Workaround for XLA on CPU, which computes slowly with a batch axis of size 1."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from jaxtyping import Array

_P = ParamSpec("_P")
_Function = Callable[Concatenate[Array, _P], Array]


def without_batch_of_one(function: _Function[_P]) -> _Function[_P]:
    """Drops leading axes of size 1 from the first argument, and restores them after.

    The function must not need these axes; it always gets at least two. With them, XLA
    on CPU transposes operands for the gradients of weights, and takes up to 20 times as
    long for sums of products, as in norms and gates.
    """

    @functools.wraps(function)
    def wrapped(x: Array, *args: _P.args, **kwargs: _P.kwargs) -> Array:
        if x.ndim > 2 and x.shape[0] == 1:
            return wrapped(x.squeeze(0), *args, **kwargs)[None]
        return function(x, *args, **kwargs)

    return wrapped
