"""Memory of a program on each device, regressed from a few compiled programs."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize

from jaxload.balance.form import Form
from jaxload.balance.program import Program
from jaxload.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """Largest program of a form within the memory budget."""

    program: Program
    within_budget: bool
    """False if the program has the smallest batch and still exceeds the budget."""

    unit: int
    """Smallest batch size; every batch is a multiple of this size."""

    @property
    def max_units(self) -> int:
        """Number of units within the memory budget; 0 if not even one is."""
        return self.program.batch // self.unit if self.within_budget else 0

    @property
    def samples_per_device(self) -> int:
        """Number of samples of one unit on each device."""
        return self.unit // self.program.layout.batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryLaw:
    """Bytes of n samples of S tokens each on a device.

    `fixed + n * (per_sample + per_token * S)`. Attention is computed in blocks, so
    memory has no term in S squared.
    """

    fixed: float
    """Bytes of parameters, gradients and optimizer state, independent of the batch."""

    per_sample: float
    per_token: float

    def __call__(self, program: Program) -> float:
        return self.fixed + program.samples_per_device * self.sample(program.tokens)

    def sample(self, tokens: int) -> float:
        """Returns the bytes that one more sample per device adds."""
        return self.per_sample + self.per_token * tokens

    def max_tokens(self, samples: int, budget: int) -> int:
        """Returns the most tokens of `samples` equal samples per device in a budget."""
        if not self.per_token:
            return sys.maxsize
        left = (budget - self.fixed) / samples - self.per_sample
        return max(0, int(left / self.per_token * (1 + 1e-9)))

    def max_samples(self, tokens: int, budget: int) -> int:
        """Returns the most samples per device within a budget in bytes; 0 if none."""
        samples = (budget - self.fixed) / self.sample(tokens)
        # 1e-9 saves a last sample that the rounding of the regression would lose.
        return max(0, int(samples * (1 + 1e-9)))


def regress_memory(measured: Mapping[Program, int]) -> MemoryLaw:
    """Regresses the memory law from the bytes of some compiled programs.

    Relative errors are minimised and no coefficient is negative. If all programs have
    one length, the law holds for that length only.
    """
    samples = {program.samples_per_device for program in measured}
    if len(samples) < 2:
        raise InputError(
            f"memory of {len(measured)} programs with {sorted(samples)} samples per "
            "device: expected two batch sizes or more; compile another one"
        )
    n = np.array([program.samples_per_device for program in measured], float)
    tokens = np.array([program.tokens for program in measured], float)
    num_bytes = np.array(list(measured.values()), float)
    columns = np.stack([np.ones_like(n), n, n * tokens], axis=1)
    if len(set(tokens.tolist())) < 2:
        columns[:, 1] = 0.0
    relative = columns / num_bytes[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    found = optimize.nnls(relative / scale, np.ones_like(num_bytes))[0] / scale
    fixed, per_sample, per_token = found.tolist()
    law = MemoryLaw(fixed=fixed, per_sample=per_sample, per_token=per_token)
    if law.sample(int(tokens.max())) < 1:  # One byte; rounding seldom gives exactly 0.
        raise InputError(
            f"memory of {len(measured)} programs that does not grow with samples: "
            "expected larger batches to take more; compile batches further apart"
        )
    return law


def probe_forms(forms: Sequence[Form]) -> list[Form]:
    """Returns the forms to compile for a regression: the shortest and the longest."""
    ordered = sorted(forms, key=lambda form: form.tokens)
    return list(dict.fromkeys((ordered[0], ordered[-1])))
