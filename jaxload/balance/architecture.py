"""FLOPs of a transformer's matmuls, from its dimensions alone."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

from jaxload.balance.cost import CostLaw
from jaxload.balance.flops import Adapters, Flops, Matrix
from jaxload.balance.program import Remat


@runtime_checkable
class Architecture(Protocol):
    """Dimensions of a transformer that determine the FLOPs of its matmuls."""

    def embeddings(self) -> Flops:
        """Returns the forward FLOPs outside of the blocks."""
        ...

    def matrices(self) -> list[Matrix]:
        """Returns the weight matrices of all blocks."""
        ...

    def cross_attention(self) -> Flops:
        """Returns the forward FLOPs of attention to keys outside of the sequence."""
        ...

    def attention(self) -> Flops:
        """Returns the forward FLOPs of attention within the sequence."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossArchitecture:
    """Blocks of self-attention, cross-attention and an MLP, as in Wan.

    Cross-attention is to the text and, if the model takes one, to an image.
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
        """Returns the forward FLOPs outside of the blocks."""
        width, text = self.width, self.num_text_tokens
        # Time embedding: two layers, then one that gives the blocks six modulations.
        time = 2 * width * (self.time_width + 7 * width)
        image = 2 * self.num_image_tokens * self.image_dim * (self.image_dim + width)
        return _patches(
            width, self.channels + self.condition_channels, self.channels
        ) + Flops(per_sample=2 * text * width * (self.text_dim + width) + time + image)

    def matrices(self) -> list[Matrix]:
        """Returns the weight matrices of all blocks."""
        depth, num_keys = self.depth, self.num_text_tokens + self.num_image_tokens
        matrices = _mlp(self.width, self.mlp_width, per_token=depth)
        # Both attentions apply q and out to the tokens. Self-attention also applies k
        # and v to the tokens; cross-attention applies its k and v to text and image.
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
        """Returns the forward FLOPs of attention to keys outside of the sequence."""
        num_keys = self.num_text_tokens + self.num_image_tokens
        return self.depth * Flops(per_token=4 * num_keys * self.width)

    def attention(self) -> Flops:
        """Returns the forward FLOPs of attention within the sequence."""
        return self.depth * Flops(per_token_squared=4 * self.width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointArchitecture:
    """Attention over text and latent tokens as one sequence, as in MMDiTs.

    Double blocks have separate weights for text and latent tokens; single blocks share
    one set. Refiner blocks see the text alone.
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
        """Returns the forward FLOPs outside of the blocks."""
        width, text = self.width, self.num_text_tokens
        time = 2 * width * (self.time_width + width)
        pooled = 2 * width * (self.pooled_dim + self.text_dim + 2 * width)
        head = 4 * width**2
        # Time is embedded twice, for the blocks and for the refiner; guidance is
        # embedded like time.
        conditions = (3 if self.guidance else 2) * time + pooled + head
        return _patches(width, self.channels, self.channels) + Flops(
            per_sample=2 * text * width * self.text_dim + conditions
        )

    def matrices(self) -> list[Matrix]:
        """Returns the weight matrices of all blocks."""
        width, text = self.width, self.num_text_tokens
        double, single = self.num_double_blocks, self.num_single_blocks
        both = {"per_token": double + single, "per_sample": text * (double + single)}
        matrices = [_square(width, target, **both) for target in ("q", "k", "v")]
        in_double = {"per_token": double, "per_sample": text * double}
        matrices.append(_square(width, "out", **in_double))
        matrices += _mlp(width, self.mlp_width, **in_double)
        # Single blocks fuse `out` with the second matrix of the MLP.
        in_single = {"per_token": single, "per_sample": text * single}
        hidden, out = _mlp(width, self.mlp_width, **in_single)
        rows = width + self.mlp_width
        matrices += [hidden, dataclasses.replace(out, rows=rows, target="out")]
        # Twelve modulations per double block and three per single block. Each refiner
        # block has q, k, v, out, an MLP four times as wide, and two modulations.
        refiner = self.num_refiner_blocks
        num_vectors = 12 * double + 3 * single + (12 * text + 2) * refiner
        others = _square(width, None, per_sample=num_vectors, behind_adapters=False)
        return [*matrices, others]

    def cross_attention(self) -> Flops:
        """Returns the forward FLOPs of attention to keys outside of the sequence."""
        return Flops()

    def attention(self) -> Flops:
        """Returns the forward FLOPs of attention within the sequence."""
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

    Each matmul counts three times: once in the forward pass, and once in the backward
    pass for the gradient of each operand. A matmul that remat recomputes counts four
    times. If only adapters are trained, the model's matrices get no gradients, and
    matmuls outside of the blocks count once: the backward pass of the output
    projection is small enough to ignore.
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
    """Returns the forward FLOPs of the 2x2 patch embedding and of its inverse."""
    return Flops(per_token=8 * (in_channels + out_channels) * width)
