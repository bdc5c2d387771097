"""How uneven the replicas of a step are: every definition that papers use."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imbalance:
    """Means over steps, for replica r's time t_r, but for the first."""

    idle_share: float
    """Time that replicas wait, over all their time: all steps together."""

    mean_wait: float
    """mean_r(max - t_r) / max"""

    max_over_mean: float
    """max / mean - 1"""

    spread: float
    """(max - min) / max"""

    variation: float
    """Standard deviation over mean."""


def measure_imbalance(seconds: np.ndarray) -> Imbalance:
    """Judges times of [steps, replicas]."""
    longest, mean = seconds.max(axis=1), seconds.mean(axis=1)
    return Imbalance(
        idle_share=float(1 - mean.sum() / longest.sum()),
        mean_wait=float((1 - mean / longest).mean()),
        max_over_mean=float((longest / mean - 1).mean()),
        spread=float((1 - seconds.min(axis=1) / longest).mean()),
        variation=float((seconds.std(axis=1) / mean).mean()),
    )


def idle_by_step(seconds: np.ndarray) -> np.ndarray:
    """The share of each step that replicas wait, of times of [steps, replicas]."""
    return 1 - seconds.mean(axis=1) / seconds.max(axis=1)


def expected_distinct(weights: np.ndarray, num_draws: float) -> float:
    """Distinct things among so many random draws, by weight."""
    share = weights / weights.sum()
    return float((1 - (1 - share) ** num_draws).sum())
