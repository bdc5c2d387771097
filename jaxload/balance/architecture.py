"""How many FLOPs the matmuls of a transformer take, from its sizes alone."""

import dataclasses
from typing import Literal, Protocol, runtime_checkable

from jaxload.balance.cost import CostModel

Remat = Literal["none", "attention", "full"]
"""What a block keeps for its backward pass: all, its attention, or its input alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """`per_sample + per_token * S + per_token_squared * S^2`."""

    per_sample: int | float = 0
    per_token: int | float = 0
    per_token_squared: int | float = 0

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            per_sample=self.per_sample + other.per_sample,
            per_token=self.per_token + other.per_token,
            per_token_squared=self.per_token_squared + other.per_token_squared,
        )

    def __rmul__(self, factor: int | float) -> "Flops":
        return Flops(
            per_sample=factor * self.per_sample,
            per_token=factor * self.per_token,
            per_token_squared=factor * self.per_token_squared,
        )


@runtime_checkable
class Architecture(Protocol):
    """The sizes of a transformer that its matmuls depend on."""

    def embeddings(self) -> Flops:
        """Of a forward pass, what is outside of the blocks."""
        ...

    def projections(self) -> Flops:
        """Of the blocks, all but attention among all tokens."""
        ...

    def attention(self) -> Flops:
        """Of the blocks, scores among all tokens and what they weigh."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossArchitecture:
    """Blocks of self-attention, cross-attention and an MLP, as in Wan.

    The latter is to the text and, where there is one, to an image.
    """

    width: int
    depth: int
    mlp_width: int
    num_text_tokens: int
    text_dim: int
    channels: int = 16
    condition_channels: int = 0
    image_dim: int = 0
    num_image_tokens: int = 0
    time_width: int = 256

    def embeddings(self) -> Flops:
        """Of a forward pass, what is outside of the blocks."""
        width, text = self.width, self.num_text_tokens
        # Of time: two layers of its own and six modulations of the blocks.
        time = 2 * width * (self.time_width + 7 * width)
        image = 2 * self.num_image_tokens * self.image_dim * (self.image_dim + width)
        return _patches(
            width, self.channels + self.condition_channels, self.channels
        ) + Flops(per_sample=2 * text * width * (self.text_dim + width) + time + image)

    def projections(self) -> Flops:
        """Of the blocks, all but attention among all tokens."""
        width = self.width
        num_keys = self.num_text_tokens + self.num_image_tokens
        # Self q, k, v, out; cross q, out and scores; both matrices of the MLP. Keys and
        # values of text and image, once a sample.
        return self.depth * Flops(
            per_sample=4 * num_keys * width**2,
            per_token=12 * width**2 + 4 * width * self.mlp_width + 4 * num_keys * width,
        )

    def attention(self) -> Flops:
        """Of the blocks, scores among all tokens and what they weigh."""
        return self.depth * Flops(per_token_squared=4 * self.width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointArchitecture:
    """Attention of text and tokens as one sequence, as in MMDiTs.

    Double blocks have weights for each, single blocks share them; refiner blocks are of
    the text alone.
    """

    width: int
    num_double_blocks: int
    num_single_blocks: int
    num_refiner_blocks: int
    mlp_width: int
    num_text_tokens: int
    text_dim: int
    pooled_dim: int
    guidance: bool
    channels: int = 16
    time_width: int = 256

    def embeddings(self) -> Flops:
        """Of a forward pass, what is outside of the blocks."""
        width, text = self.width, self.num_text_tokens
        time = 2 * width * (self.time_width + width)
        pooled = 2 * width * (self.pooled_dim + self.text_dim + 2 * width)
        head = 4 * width**2
        # Time enters twice, at the refiner too; guidance is embedded like time.
        conditions = (3 if self.guidance else 2) * time + pooled + head
        return _patches(width, self.channels, self.channels) + Flops(
            per_sample=2 * text * width * self.text_dim + conditions
        )

    def projections(self) -> Flops:
        """Of the blocks, all but attention among all tokens."""
        width, text = self.width, self.num_text_tokens
        # q, k, v, out and both matrices of the MLP; in single blocks, out is one with
        # the second of them.
        per_token = 8 * width**2 + 4 * width * self.mlp_width
        num_blocks = self.num_double_blocks + self.num_single_blocks
        modulations = 24 * self.num_double_blocks + 6 * self.num_single_blocks
        refiner = self.num_refiner_blocks * (24 * text + 4) * width**2
        return num_blocks * Flops(
            per_token=per_token, per_sample=text * per_token
        ) + Flops(per_sample=modulations * width**2 + refiner)

    def attention(self) -> Flops:
        """Of the blocks, scores among all tokens and what they weigh."""
        text = self.num_text_tokens
        num_blocks = self.num_double_blocks + self.num_single_blocks
        per_pair = 4 * self.width
        return num_blocks * Flops(
            per_sample=per_pair * text**2,
            per_token=2 * per_pair * text,
            per_token_squared=per_pair,
        ) + Flops(per_sample=self.num_refiner_blocks * per_pair * text**2)


def analytic_cost(architecture: Architecture, *, remat: Remat = "none") -> CostModel:
    """FLOPs of one training step: matmuls, at two FLOPs per multiply-add.

    Three times the forward pass, because the backward pass computes a gradient for
    both operands of each matmul; four times what a block computes again there.
    """
    flops = (
        3.0 * architecture.embeddings()
        + (3.0 if remat == "none" else 4.0) * architecture.projections()
        + (4.0 if remat == "full" else 3.0) * architecture.attention()
    )
    again = {
        "none": "",
        "attention": ", with each block's forward pass but its attention again",
        "full": ", with each block's forward pass again",
    }[remat]
    return CostModel(
        fixed=0.0,
        per_sample=float(flops.per_sample),
        per_token=float(flops.per_token),
        per_token_squared=float(flops.per_token_squared),
        unit="FLOP",
        source=f"analytic: matmuls, forward and backward{again}",
    )


def _patches(width: int, in_channels: int, out_channels: int) -> Flops:
    """Of the patch embedding of 2x2, and of its inverse."""
    return Flops(per_token=8 * (in_channels + out_channels) * width)
