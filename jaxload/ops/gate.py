"""Product of the tokens of each sample with a gate."""

# Shape suffixes: B batch, S tokens, D width.

import jax
from jaxtyping import Array, Float

from jaxload.ops._batch_of_one import without_batch_of_one


@without_batch_of_one
def gate_tokens(
    h_BSD: Float[Array, "*b s d"], gate_BD: Float[Array, "c d"]
) -> Float[Array, "*b s d"]:
    """Returns `gate * h`; all tokens of a sample have the same gate.

    The batch axis of `h` may be missing if there is one sample.
    """
    assert h_BSD.ndim == 2 or len(gate_BD) == len(h_BSD), (gate_BD.shape, h_BSD.shape)
    return jax.lax.expand_dims(gate_BD, range(1, h_BSD.ndim - 1)) * h_BSD
