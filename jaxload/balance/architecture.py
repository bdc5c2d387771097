"""FLOPs of a transformer's matmuls, computed from its dimensions."""

import math
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


def square_matrix(width: int, target: str | None, **uses: Any) -> Matrix:
    """Returns a matrix from the model width to itself; `uses` are fields of Matrix."""
    return Matrix(rows=width, columns=width, target=target, **uses)


def mlp_matrices(width: int, mlp_width: int, **uses: Any) -> list[Matrix]:
    """Returns the two matrices of a block's MLP; `uses` are fields of Matrix."""
    return [
        Matrix(rows=width, columns=mlp_width, target="mlp_in", **uses),
        Matrix(
            rows=mlp_width, columns=width, target="mlp_out", ends_block=True, **uses
        ),
    ]


def patch_flops(width: int, patch: tuple[int, int, int], channels: int) -> Flops:
    """Returns the forward FLOPs of the patch embedding and of its inverse.

    Args:
        width: Model width.
        patch: Latent frames, rows and columns per token.
        channels: Latent channels of input and output together.
    """
    return Flops(per_token=2 * math.prod(patch) * channels * width)
