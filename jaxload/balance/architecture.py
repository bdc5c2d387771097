"""How many FLOPs the matmuls of a transformer take, from its sizes alone."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

from jaxload.balance.cost import CostLaw
from jaxload.balance.flops import Adapters, Flops, Matrix
from jaxload.balance.program import Remat


@runtime_checkable
class Architecture(Protocol):
    """The sizes of a transformer that its matmuls depend on."""

    def embeddings(self) -> Flops:
        """Of a forward pass, what is outside of the blocks."""
        ...

    def matrices(self) -> list[Matrix]:
        """The weights of all blocks."""
        ...

    def cross_attention(self) -> Flops:
        """Of the blocks, scores of tokens with keys that are not among them."""
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

    def matrices(self) -> list[Matrix]:
        """The weights of all blocks."""
        depth, num_keys = self.depth, self.num_text_tokens + self.num_image_tokens
        matrices = _mlp(self.width, self.mlp_width, per_token=depth)
        # q and out, of both attentions; k and v, of tokens and of text and image.
        for target in ("q", "out"):
            matrices.append(_square(self.width, target, per_token=2 * depth))
        for target in ("k", "v"):
            matrices.append(_square(self.width, target, per_token=depth))
            matrices.append(
                _square(
                    self.width,
                    target,
                    per_sample=depth * num_keys,
                    behind_adapters=False,
                )
            )
        return matrices

    def cross_attention(self) -> Flops:
        """Of the blocks, scores of tokens with keys that are not among them."""
        num_keys = self.num_text_tokens + self.num_image_tokens
        return self.depth * Flops(per_token=4 * num_keys * self.width)

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

    def matrices(self) -> list[Matrix]:
        """The weights of all blocks."""
        width, text = self.width, self.num_text_tokens
        double, single = self.num_double_blocks, self.num_single_blocks
        both = {"per_token": double + single, "per_sample": text * (double + single)}
        matrices = [_square(width, target, **both) for target in ("q", "k", "v")]
        in_double = {"per_token": double, "per_sample": text * double}
        matrices.append(_square(width, "out", **in_double))
        matrices += _mlp(width, self.mlp_width, **in_double)
        # In single blocks, `out` and the second matrix of the MLP are one.
        in_single = {"per_token": single, "per_sample": text * single}
        hidden, out = _mlp(width, self.mlp_width, **in_single)
        rows = width + self.mlp_width
        matrices += [hidden, dataclasses.replace(out, rows=rows, target="out")]
        # Twelve modulations of double blocks and three of single ones; then the blocks
        # of the text: q, k, v, out, an MLP four times as wide, and two modulations.
        refiner = self.num_refiner_blocks
        num_vectors = 12 * double + 3 * single + (12 * text + 2) * refiner
        others = _square(width, None, per_sample=num_vectors, behind_adapters=False)
        return [*matrices, others]

    def cross_attention(self) -> Flops:
        """Of the blocks, scores of tokens with keys that are not among them."""
        return Flops()

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


def analytic_law(
    architecture: Architecture,
    *,
    remat: Remat = "none",
    adapters: Adapters | None = None,
) -> CostLaw:
    """Returns the FLOPs of one micro-step: matmuls, at two FLOPs per multiply-add.

    Three times the forward pass, because the backward pass computes a gradient for
    both operands of each matmul; four times what a block computes again there. If only
    adapters are trained, matrices get no gradients, and outside of the blocks there is
    no backward pass, but for that of the last projection, which is small.
    """
    flops = (
        (3.0 if adapters is None else 1.0) * architecture.embeddings()
        + (3.0 if remat == "none" else 4.0) * architecture.cross_attention()
        + (4.0 if remat == "full" else 3.0) * architecture.attention()
    )
    for matrix in architecture.matrices():
        flops += matrix.flops(again=remat != "none", adapters=adapters)
    return CostLaw(
        fixed=0.0,
        per_sample=float(flops.per_sample),
        per_token=float(flops.per_token),
        per_token_squared=float(flops.per_token_squared),
    )


def _square(width: int, target: str | None, **uses: Any) -> Matrix:
    return Matrix(rows=width, columns=width, target=target, **uses)


def _mlp(width: int, mlp_width: int, **uses: Any) -> list[Matrix]:
    return [
        Matrix(rows=width, columns=mlp_width, target="mlp_in", **uses),
        Matrix(
            rows=mlp_width, columns=width, target="mlp_out", ends_block=True, **uses
        ),
    ]


def _patches(width: int, in_channels: int, out_channels: int) -> Flops:
    """Of the patch embedding of 2x2, and of its inverse."""
    return Flops(per_token=8 * (in_channels + out_channels) * width)
