"""Memory of a program on each device, regressed from a few that were compiled."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize

from jaxload.balance.program import Program
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest program of a form that the memory budget allows."""

    program: Program
    fits: bool
    """False if the smallest batch, which the program then has, is too much."""

    unit: int
    """Smallest batch, of which every batch is a multiple."""

    @property
    def max_units(self) -> int:
        """Most units that fit; 0 if one does not."""
        return self.program.batch // self.unit if self.fits else 0

    @property
    def samples_per_device(self) -> int:
        """Samples of one unit on each device."""
        return self.unit // self.program.layout.batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryLaw:
    """`fixed + n * (per_sample + per_token * S)`: bytes of one device.

    For n samples of S tokens each. Attention is computed in blocks, so memory has no
    term in S squared.
    """

    fixed: float
    """Parameters, gradients and optimizer state, whatever the batch."""

    per_sample: float
    per_token: float

    def __call__(self, program: Program) -> float:
        return self.fixed + program.samples_per_device * self.sample(program.tokens)

    def sample(self, tokens: int) -> float:
        """Returns the bytes that one more sample per device adds."""
        return self.per_sample + self.per_token * tokens

    def max_samples(self, tokens: int, budget: int) -> int:
        """Returns the most samples per device within a budget of bytes; 0 if none."""
        return max(0, int((budget - self.fixed) // self.sample(tokens)))


def regress_memory(measured: Mapping[Program, int]) -> MemoryLaw:
    """Returns the law nearest to the compiled bytes of some programs.

    Relative errors are minimised and no coefficient is negative. Programs of one length
    determine the bytes of a sample of that length and no other.
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
    if law.sample(int(tokens.max())) < 1:  # Byte; rounding seldom leaves an exact 0.
        raise InputError(
            f"memory of {len(measured)} programs that does not grow with samples: "
            "expected larger batches to take more; compile batches further apart"
        )
    return law


def probe_shapes(shapes: Sequence[Shape]) -> list[Shape]:
    """Returns the shapes to compile for a regression: the shortest and the longest."""
    ordered = sorted(shapes, key=lambda shape: shape.tokens)
    return list(dict.fromkeys((ordered[0], ordered[-1])))
