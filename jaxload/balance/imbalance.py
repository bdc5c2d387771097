"""Imbalance between the replicas of a step, by every definition in use."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imbalance:
    """Imbalance of replica times t_r; all but `idle_share` are means over steps."""

    idle_share: float
    """Idle time of all replicas over their total time, both summed over steps."""

    mean_wait: float
    """Mean wait: mean_r(max - t_r) / max."""

    max_over_mean: float
    """Excess of the slowest replica over the mean: max / mean - 1."""

    spread: float
    """Range of the times: (max - min) / max."""

    variation: float
    """Coefficient of variation: standard deviation / mean."""


def measure_imbalance(seconds: np.ndarray) -> Imbalance:
    """Measures the imbalance of replica times, [steps, replicas]."""
    longest, mean = seconds.max(axis=1), seconds.mean(axis=1)
    return Imbalance(
        idle_share=float(1 - mean.sum() / longest.sum()),
        mean_wait=float((1 - mean / longest).mean()),
        max_over_mean=float((longest / mean - 1).mean()),
        spread=float((1 - seconds.min(axis=1) / longest).mean()),
        variation=float((seconds.std(axis=1) / mean).mean()),
    )


def idle_by_step(seconds: np.ndarray) -> np.ndarray:
    """Returns the idle share of each step, from replica times, [steps, replicas]."""
    return 1 - seconds.mean(axis=1) / seconds.max(axis=1)


def expected_distinct(weights: np.ndarray, num_draws: float) -> float:
    """Returns the expected number of distinct outcomes of weighted random draws."""
    share = weights / weights.sum()
    return float((1 - (1 - share) ** num_draws).sum())
