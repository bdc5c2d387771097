"""Keys of joint attention: a sample's video tokens, then its text, then padding."""

# Shape suffixes: B batch, S video tokens, T text tokens, U both: S + T.

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxload.ops import permute_tokens


class Keys(NamedTuple):
    """Order and number of the keys that each sample attends to."""

    lengths_B: Int[Array, " b"]
    """Number of keys of each sample: its video tokens and its text tokens."""

    order_BU: Int[Array, "b u"] | None = None
    """Token at each position; None if no video token is padding."""

    inverse_BU: Int[Array, "b u"] | None = None
    """Position of each token; None likewise."""

    def arrange(self, x_BUNK: Float[Array, "b u n k"]) -> Float[Array, "b u n k"]:
        """Moves the keys or values of padding behind all others.

        Attention takes the first keys of each sample, but the tokens of the text follow
        the padding of the video.
        """
        if self.order_BU is None or self.inverse_BU is None:
            return x_BUNK
        return permute_tokens(x_BUNK, self.order_BU, self.inverse_BU)


def joint_keys(
    video_lengths_B: Int[Array, " b"] | None,
    text_lengths_B: Int[Array, " b"],
    num_tokens: int,
    num_text_tokens: int,
) -> Keys:
    """Returns the keys of a batch.

    Args:
        video_lengths_B: Video tokens of each sample; None if all samples have
            `num_tokens`.
        text_lengths_B: Text tokens of each sample.
        num_tokens: Video tokens of a sample, with padding.
        num_text_tokens: Text tokens of a sample, with padding.
    """
    if video_lengths_B is None:
        return Keys(text_lengths_B + num_tokens)
    index_1U = jnp.arange(num_tokens + num_text_tokens, dtype=jnp.int32)[None]
    length_B1 = video_lengths_B[:, None]
    order_BU = jnp.where(
        index_1U < length_B1,
        index_1U,
        jnp.where(
            index_1U < length_B1 + num_text_tokens,
            index_1U - length_B1 + num_tokens,
            index_1U - num_text_tokens,
        ),
    )
    inverse_BU = jnp.where(
        index_1U < length_B1,
        index_1U,
        jnp.where(
            index_1U < num_tokens,
            index_1U + num_text_tokens,
            index_1U - num_tokens + length_B1,
        ),
    )
    return Keys(text_lengths_B + video_lengths_B, order_BU, inverse_BU)
