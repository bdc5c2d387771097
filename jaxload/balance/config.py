"""Config section `balance`."""

import dataclasses
from typing import Literal

from jaxload.errors import InputError

Rule = Literal["equal-token", "dual", "dual-cost"]
Policy = Literal["lockstep", "mixed"]
FormChoice = Literal["auto", "length", "grid"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BalanceConfig:
    """Budgets, and the choice of forms, batch sizes and deal."""

    max_tokens: int = 0
    """Memory budget per device, in tokens of one micro-batch; 0: limited only by
    bytes. More allows larger batches and risks running out of memory. Required if the
    device does not report its memory and max_bytes is 0."""

    max_bytes: int = 0
    """Memory budget per device, in bytes; programs are compiled to check it. 0: memory
    that the target or the device reports, less `reserve`. More allows larger batches
    and risks running out of memory."""

    reserve: float = 0.05
    """Share of the reported memory that is left free for fragmentation, NCCL and
    cuBLAS. More makes running out of memory less likely; less allows larger batches."""

    max_compute_tokens: int = 0
    """Compute budget of a micro-batch per device, as the cost of one sequence of this
    many tokens; 0: searched. More allows larger batches of short samples and makes
    steps longer."""

    form: FormChoice = "auto"
    """Form of the rows of a micro-batch. length: samples of any shape, padded to
    one number of tokens, so that clips keep all of their frames. grid: samples of one
    shape, which other samples are cut to. auto: length for models that attend to all
    tokens at once, otherwise grid."""

    policy: Policy = "lockstep"
    """lockstep: at each micro-step every replica runs the same bucket, so a bucket
    needs samples for one micro-batch of each. mixed: each replica runs its own buckets,
    dealt so that all finish together, and more programs may be compiled."""

    rule: Rule = "dual-cost"
    """Rule for the batch sizes of lockstep: only the memory budget (equal-token), or
    also a compute budget on tokens^exponent (dual) or on the cost model (dual-cost).
    The dual rules shrink batches of long samples, so that all take similar times."""

    costs: str = "analytic"
    """Source of program costs: analytic (FLOPs of the model), measure (timings on these
    devices before planning), or the path of a file written by jaxload.calibrate."""

    measure_seconds: float = 300.0
    """Approximate duration of costs=measure, in seconds. More gives more accurate costs
    and delays the start of the run."""

    exponent: float = 0.0
    """Power of the tokens in the rule `dual`, 1.0 or more; 0: regressed from the cost
    model. More shrinks batches of long samples relative to those of short ones."""

    max_buckets: int = 32
    """Maximum number of lengths, or of shapes by grid. More lengths pad less, more
    shapes keep more of the content, and both compile more programs."""

    max_programs: int = 0
    """Maximum number of programs in a mixed plan, where a form may have several batch
    sizes; 0: twice max_buckets. More lets replicas finish closer together and takes
    longer to compile."""

    batch_multiple: int = 1
    """Number of samples that every batch is a multiple of. A run planned with 8 can
    resume with 1, 2, 4 or 8 devices per group. Larger multiples allow more group sizes
    and leave more of the budgets unused."""

    def __post_init__(self):
        for name in ("max_buckets", "batch_multiple"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"balance.{name}={getattr(self, name)}: expected 1 or more"
                )
        for name in ("max_tokens", "max_bytes", "max_programs"):
            if getattr(self, name) < 0:
                raise InputError(
                    f"balance.{name}={getattr(self, name)}: expected 0 or more"
                )
        if self.max_compute_tokens < 0:
            raise InputError(
                f"balance.max_compute_tokens={self.max_compute_tokens}: expected 0 "
                "or more; 0 searches for the budget"
            )
        if self.exponent and self.exponent < 1.0:
            raise InputError(
                f"balance.exponent={self.exponent}: expected 1.0 or more, or 0 to "
                "regress it; cost grows at least with the number of tokens"
            )
        if not 0.0 <= self.reserve < 1.0:
            raise InputError(
                f"balance.reserve={self.reserve}: expected a share from 0 to below 1"
            )
        if self.measure_seconds <= 0:
            raise InputError(
                f"balance.measure_seconds={self.measure_seconds}: expected more than 0"
            )
