"""What a micro-batch costs, as a function of its batch size and its tokens."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxload.errors import InputError

Number = int | float | np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostModel:
    """`fixed + B * (per_sample + per_token * S + per_token_squared * S^2)`.

    Two terms in S and not one power: the local exponent climbs from 1 towards 2 as
    attention takes over from the matmuls, so no single exponent prices both an image
    and a long clip.
    """

    fixed: float
    """Of a micro-batch, whatever it holds."""

    per_token: float
    per_token_squared: float
    per_sample: float = 0.0
    """Of a sample, whatever its tokens: its text."""

    unit: str
    source: str
    """Where the numbers come from; the plan repeats it."""

    def __call__(self, batch: Number, tokens: Number) -> Number:
        return self.fixed + batch * self.sample(tokens)

    def sample(self, tokens: Number) -> Number:
        """What one more sample adds to a micro-batch."""
        return self.per_sample + tokens * (
            self.per_token + self.per_token_squared * tokens
        )

    def exponent(self, tokens: np.ndarray) -> float:
        """The power of S that fits the cost of one sample best over some lengths.

        Least squares in logarithms, as a fit of the rule `B * S^p <= M_comp` is done.
        """
        lengths = np.unique(tokens).astype(float)
        if len(lengths) < 2:
            lengths = lengths * np.array([1.0, 1.01])  # The local exponent.
        slope, _ = np.polyfit(np.log(lengths), np.log(self.sample(lengths)), 1)
        return float(slope)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a video transformer that its matmuls depend on.

    Blocks of self-attention over all tokens, cross-attention to the text and an MLP,
    between a patch embedding of 2x2 and its inverse.
    """

    width: int
    depth: int
    mlp_width: int
    num_text_tokens: int
    text_dim: int
    channels: int = 16
    time_width: int = 256


ARCHITECTURES: Mapping[str, Architecture] = {
    "wan2.1-t2v-1.3b": Architecture(
        width=1536, depth=30, mlp_width=8960, num_text_tokens=512, text_dim=4096
    ),
    "wan2.1-t2v-14b": Architecture(
        width=5120, depth=40, mlp_width=13_824, num_text_tokens=512, text_dim=4096
    ),
}


def find_architecture(name: str) -> Architecture:
    """The sizes of a model that is known by name."""
    if name not in ARCHITECTURES:
        raise InputError(f"model {name!r}: expected one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def analytic_cost(architecture: Architecture, *, remat: bool = False) -> CostModel:
    """FLOPs of one training step: matmuls, at two FLOPs per multiply-add.

    Three times the forward pass, because the backward pass computes a gradient for
    both operands of each matmul. With `remat` each block's forward pass is run again
    in the backward pass: four times.
    """
    width, text = architecture.width, architecture.num_text_tokens
    patch_width = 4 * architecture.channels
    blocks = architecture.depth * (4.0 if remat else 3.0)
    # Self q, k, v, out; cross q, out; both matrices of the MLP; scores of the text.
    block_token = 12 * width**2 + 4 * width * architecture.mlp_width + 4 * text * width
    block_token_squared = 4 * width
    block_text = 4 * text * width**2  # Its keys and values.
    text_in = 2 * text * width * (architecture.text_dim + width)
    # Two layers of its own, six modulations of the blocks, two of the head.
    time_in = 2 * width * (architecture.time_width + 9 * width)
    patches = 4 * patch_width * width  # In and out.
    return CostModel(
        fixed=0.0,
        per_sample=blocks * block_text + 3.0 * (text_in + time_in),
        per_token=blocks * block_token + 3.0 * patches,
        per_token_squared=blocks * block_token_squared,
        unit="FLOP",
        source="analytic: matmuls, forward and backward"
        + (", with each block's forward pass again" if remat else ""),
    )
