"""What a micro-batch costs, as a function of its batch size and its tokens."""

import dataclasses

import numpy as np

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
