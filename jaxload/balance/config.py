"""Config section `balance`."""

import dataclasses
from typing import Literal

from jaxload.errors import InputError

Rule = Literal["equal-token", "dual", "dual-cost"]
Policy = Literal["lockstep", "mixed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BalanceConfig:
    """Budgets, and how shapes, batch sizes and the deal over replicas are chosen."""

    max_tokens: int = 0
    """Memory budget in tokens that one micro-batch may hold on a device; 0: bytes
    alone. It rules where a device does not report its memory."""

    max_bytes: int = 0
    """Memory budget in bytes per device; programs are compiled to see what fits. 0:
    what the target or the device reports, less `reserve`."""

    reserve: float = 0.05
    """Share of the reported memory that is left free for fragmentation, NCCL and
    cuBLAS; less allows larger batches and risks running out of memory."""

    max_compute_tokens: int = 0
    """Compute budget per device: the cost of one sequence of this many tokens; 0:
    searched. More allows larger batches of short samples."""

    policy: Policy = "lockstep"
    """lockstep: every replica runs the same bucket at once; mixed: each runs its own,
    dealt so that all finish together."""

    rule: Rule = "dual-cost"
    """Batch sizes from memory alone (equal-token), with tokens^exponent (dual), or with
    the cost model (dual-cost)."""

    costs: str = "analytic"
    """Costs of programs: analytic (FLOPs of the model), measure (time them on these
    devices first), or a file of jaxload.calibrate."""

    measure_seconds: float = 300.0
    """Seconds that costs=measure may take; more give a better regression."""

    exponent: float = 0.0
    """Power of the tokens in the rule `dual`; 0: regressed from the cost model."""

    max_buckets: int = 32
    """Shapes to keep; more keep more of the content and compile more programs. Samples
    that suit none are dropped, and counted."""

    max_programs: int = 0
    """Programs of a mixed plan, in which a shape may have several batch sizes; 0: twice
    max_buckets. More let replicas finish closer together."""

    batch_multiple: int = 1
    """Every batch is a multiple of this. A run planned with 8 can resume with up to 8
    devices per group; larger multiples leave more of the budgets unused."""

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
                "or more; 0 has the budget searched"
            )
        if self.exponent and self.exponent < 1.0:
            raise InputError(
                f"balance.exponent={self.exponent}: expected 1.0 or more, or 0 to have "
                "it regressed; cost grows at least with the number of tokens"
            )
        if not 0.0 <= self.reserve < 1.0:
            raise InputError(
                f"balance.reserve={self.reserve}: expected a share from 0 to below 1"
            )
        if self.measure_seconds <= 0:
            raise InputError(
                f"balance.measure_seconds={self.measure_seconds}: expected more than 0"
            )
