"""Limits on the numbers of a plan from a file, which may have been edited or forged.

Within these limits, a plan is printed, checked and followed in bounded time and memory.
The planner stays far below them.
"""

import math
from collections.abc import Sequence

from jaxload.balance.bucket import Bucket
from jaxload.balance.cost import CostModel
from jaxload.balance.pattern import Pattern
from jaxload.errors import InputError
from jaxload.shapes.geometry import Geometry

MAX_REPLICAS = 2**20
MAX_MICRO_BATCHES = 2**20
"""Most micro-batches of one replica in one step. Deals round costs so that a replica
has at most 20,000, unless a short epoch has fewer replica-steps than replicas."""

MAX_SAMPLES = 2**60
MAX_SIZE = 2**16
"""Most pixels of a token and latent positions of a size; their products stay small."""

_MAX_BATCH = 2**24
_MAX_BYTES = 2**63 - 1
_MAX_POSITION = 2**62  # Positions of a step in a deal are computed with 64 bits.
_LEAST_COST, _MAX_COST = 1e-100, 1e100  # Sums and products of costs stay finite.
_MAX_BUDGETS = 1e12  # Most compute budgets that one micro-batch costs.


def check_number(
    path: str, value: int | float, least: int | float, most: int | float
) -> None:
    """Refuses a number outside of a range; `path` names its field."""
    if not least <= value <= most:
        raise InputError(f"{path}={value}: expected {least:,} to {most:,}")


def check_geometry_sizes(path: str, geometry: Geometry) -> None:
    """Refuses a geometry with tokens of an impossible size."""
    for size in (*geometry.strides, *geometry.patch):
        check_number(f"{path}.geometry", size, 1, MAX_SIZE)


def check_batch(path: str, batch: int) -> None:
    """Refuses an impossible batch size."""
    check_number(f"{path}.batch", batch, 1, _MAX_BATCH)


def check_buckets(buckets: Sequence[Bucket], *, policy: str) -> None:
    """Refuses invalid numbers of buckets, and buckets that contradict each other."""
    num_samples = {}
    for i, bucket in enumerate(buckets):
        path = f"buckets.{i}"
        check_number(f"{path}.num_samples", bucket.num_samples, 1, MAX_SAMPLES)
        check_number(f"{path}.cost", bucket.cost, _LEAST_COST, _MAX_COST)
        check_number(f"{path}.num_bytes", bucket.num_bytes, 0, _MAX_BYTES)
        if bucket.batch > bucket.num_samples:
            raise InputError(
                f"{path}.num_samples={bucket.num_samples}: expected {bucket.batch} or "
                "more, the samples of a micro-batch"
            )
        _check_lengths(f"{path}.lengths", bucket)
        others = num_samples.setdefault(bucket.form, bucket.num_samples)
        if others != bucket.num_samples:
            raise InputError(
                f"{path}.num_samples={bucket.num_samples}: expected {others}, as in "
                f"another bucket of form {bucket.form}"
            )
    if len({bucket.program for bucket in buckets}) < len(buckets):
        raise InputError("buckets: expected each program once, got one several times")
    if policy == "lockstep" and len(num_samples) < len(buckets):
        raise InputError("buckets: expected each form once, got one several times")


def _check_lengths(path: str, bucket: Bucket) -> None:
    lengths = bucket.lengths
    check_number(f"{path}.longest", lengths.longest, 1, bucket.tokens)
    check_number(f"{path}.shortest", lengths.shortest, 1, lengths.longest)
    check_number(f"{path}.mean", lengths.mean, lengths.shortest, lengths.longest)
    check_number(f"{path}.num_grids", lengths.num_grids, 1, bucket.num_samples)
    check_number(f"{path}.num_images", lengths.num_images, 0, bucket.num_samples)


def check_costs(
    cost_model: CostModel,
    buckets: Sequence[Bucket],
    *,
    budget: float,
    accumulate: int,
    policy: str,
) -> None:
    """Refuses costs and budgets with which samples could not be dealt anew."""
    check_number("budget", budget, 0, math.inf)
    for remat, law in cost_model.laws.items():
        for name, value in vars(law).items():
            check_number(f"cost_model.laws.{remat}.{name}", value, 0, _MAX_COST)
    for i, bucket in enumerate(buckets):
        if bucket.program.remat not in cost_model.laws:
            raise InputError(
                f"cost_model.laws: expected one for remat={bucket.program.remat}, got "
                "none"
            )
        cost = cost_model(bucket.program)
        check_number(f"buckets.{i}: cost by cost_model", cost, _LEAST_COST, _MAX_COST)
        if policy == "mixed" and max(cost, bucket.cost) > (
            _MAX_BUDGETS * budget * accumulate
        ):
            raise InputError(
                f"budget={budget}: expected about the cost of a micro-batch, such as "
                f"{cost}"
            )


def check_patterns(
    patterns: Sequence[Pattern],
    rest: Sequence[Pattern],
    buckets: Sequence[Bucket],
    *,
    num_replicas: int,
) -> None:
    """Refuses a deal that cannot run, or that uses more samples than there are."""
    left = {bucket.form: bucket.num_samples for bucket in buckets}
    for i, pattern in enumerate((*patterns, *rest)):
        path = f"patterns.{i}"
        if i >= len(patterns):
            path = f"rest.{i - len(patterns)}"
        _check_pattern(path, pattern, len(buckets))
        if i >= len(patterns):
            check_number(f"{path}.times", pattern.times, 1, 1)
            continue
        for bucket, count in zip(buckets, pattern.counts, strict=True):
            left[bucket.form] -= bucket.batch * count * pattern.times
            if left[bucket.form] < 0:
                raise InputError(
                    f"{path}: expected at most the {bucket.num_samples} samples of "
                    f"form {bucket.form} in all patterns, got more"
                )
    size = sum(pattern.times for pattern in (*patterns, *rest))
    if size * min(size, num_replicas) > _MAX_POSITION:
        raise InputError(
            f"patterns: expected fewer replica-steps in an epoch, got {size}"
        )


def _check_pattern(path: str, pattern: Pattern, num_buckets: int) -> None:
    if len(pattern.counts) != num_buckets:
        raise InputError(
            f"{path}.counts: expected a count for each of {num_buckets} buckets, got "
            f"{len(pattern.counts)}"
        )
    check_number(f"{path}.times", pattern.times, 1, MAX_SAMPLES)
    for count in pattern.counts:
        check_number(f"{path}.counts", count, 0, MAX_MICRO_BATCHES)
    total = sum(pattern.counts)
    check_number(f"{path}: micro-batches", total, 1, MAX_MICRO_BATCHES)
