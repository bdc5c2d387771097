"""What a micro-batch costs, as a function of its batch size and its tokens."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostModel:
    """`fixed + per_token * B * S + per_token_squared * B * S^2`.

    Two terms in S and not one power: the local exponent climbs from 1 towards 2 as
    attention takes over from the matmuls, so no single exponent prices both an image
    and a long clip.
    """

    fixed: float
    per_token: float
    per_token_squared: float
    unit: str
    source: str
    """Where the numbers come from; the plan repeats it."""

    def __call__(self, batch: int, tokens: int) -> float:
        per_sample = tokens * (self.per_token + self.per_token_squared * tokens)
        return self.fixed + batch * per_sample


def analytic_cost(
    *, width: int, depth: int, mlp_width: int, num_text_tokens: int
) -> CostModel:
    """FLOPs of one training step of the transformer's blocks.

    Matmuls only, at two FLOPs per multiply-add, and three times the forward pass: the
    backward pass computes a gradient for both operands of each matmul.
    """
    projections = 12 * width * width  # Self q, k, v, out; cross q, out.
    mlp = 4 * width * mlp_width
    cross_attention = 4 * num_text_tokens * width
    self_attention = 4 * width
    return CostModel(
        fixed=0.0,
        per_token=3.0 * depth * (projections + mlp + cross_attention),
        per_token_squared=3.0 * depth * self_attention,
        unit="FLOP",
        source="analytic: matmuls of the blocks, forward and backward",
    )
