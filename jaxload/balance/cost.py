"""Cost of a program on each device of its group."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxload.balance.program import REMATS, Program, Remat

Number = int | float | np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostLaw:
    """Cost of n samples of S tokens each on a device.

    `fixed + n * (per_sample + per_token * S + per_token_squared * S^2)`. The law has
    two terms in S instead of one power, because the local exponent climbs from 1
    towards 2 as attention takes over from the matmuls: no single exponent prices both
    an image and a long clip.
    """

    fixed: float
    """Cost of a micro-batch, independent of its samples."""

    per_token: float
    per_token_squared: float
    per_sample: float = 0.0
    """Cost of a sample that does not depend on its tokens, such as that of its text."""

    def __call__(self, samples: Number, tokens: Number) -> Number:
        return self.fixed + samples * self.sample(tokens)

    def sample(self, tokens: Number, keys: Number | None = None) -> Number:
        """Returns the cost that one more sample adds.

        Args:
            tokens: Tokens of the sample, with padding.
            keys: Tokens that each token attends to; None: all of them.
        """
        keys = tokens if keys is None else keys
        return self.per_sample + tokens * (
            self.per_token + self.per_token_squared * keys
        )

    def scaled(self, factor: float) -> "CostLaw":
        """Returns the law with every coefficient multiplied by `factor`."""
        fields = dataclasses.asdict(self)
        return CostLaw(**{name: factor * value for name, value in fields.items()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostModel:
    """Cost of a program: one law for each remat policy."""

    laws: Mapping[Remat, CostLaw]
    unit: str
    source: str
    """Origin of the numbers, as recorded in the plan."""

    skips_padding: bool = False
    """True if attention takes no time for keys that are padding, as that of cuDNN: S
    queries then attend to the L tokens of their sample, and otherwise to S."""

    @classmethod
    def of(cls, law: CostLaw, *, unit: str, source: str) -> "CostModel":
        """Builds a model with the same law for every remat policy."""
        return cls(laws=dict.fromkeys(REMATS, law), unit=unit, source=source)

    def __call__(self, program: Program, mean_length: float | None = None) -> float:
        """Returns the cost of a micro-batch.

        Args:
            program: Program of the micro-batch.
            mean_length: Mean tokens of its samples; None: all rows are full.
        """
        fixed = self.laws[program.remat].fixed
        return fixed + program.samples_per_device * self.sample(program, mean_length)

    def sample(self, program: Program, mean_length: float | None = None) -> float:
        """Returns the cost that one more sample adds on each device that shares it."""
        keys = mean_length if self.skips_padding else None
        cost = float(self.laws[program.remat].sample(program.tokens, keys))
        return cost / program.layout.devices_per_sample

    def of_rows(self, program: Program, mean_lengths: np.ndarray) -> np.ndarray:
        """Returns the costs of micro-batches, by the mean tokens of their samples."""
        full, none = self(program), self(program, 0.0)
        return none + (full - none) * mean_lengths / program.tokens

    def own(self, program: Program, tokens: np.ndarray) -> np.ndarray:
        """Returns the costs of samples of a program if they had no padding.

        They are shares of a replica's time, summed over the samples of a micro-batch.
        """
        cost = np.asarray(self.laws[program.remat].sample(tokens), float)
        return cost / program.layout.num_devices

    @property
    def fixed(self) -> float:
        """Cost of a micro-batch, independent of its samples and its remat policy."""
        return next(iter(self.laws.values())).fixed

    def exponent(self, programs: Sequence[Program]) -> float:
        """Returns the power of S that best approximates the cost of one sample.

        The regression is by least squares in logarithms, as is usual for the rule
        `B * S^p <= M_comp`.
        """
        law_of: dict[float, CostLaw] = {p.tokens: self.laws[p.remat] for p in programs}
        if len(law_of) < 2:  # A single length gives the local exponent.
            law_of |= {1.01 * tokens: law for tokens, law in law_of.items()}
        price = {tokens: float(law.sample(tokens)) for tokens, law in law_of.items()}
        logs = np.log(list(price)), np.log(list(price.values()))
        slope, _ = np.polyfit(*logs, 1)
        return float(slope)
