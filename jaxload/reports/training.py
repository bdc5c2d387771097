"""A run as a picture."""

import collections
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxload.training.events import StepMetrics

_MAX_LABELS = 16


def draw_figure(rows: Sequence[StepMetrics], path: Path) -> None:
    """Draws loss by step and step time by bucket."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    if rows:
        _draw_loss(left, rows)
        _draw_step_time(right, rows)
    figure.savefig(path, dpi=120)


def _draw_loss(axes: Axes, rows: Sequence[StepMetrics]) -> None:
    steps = np.array([row.step for row in rows])
    losses = np.array([row.loss for row in rows])
    window = max(1, len(rows) // 20)
    axes.plot(steps, losses, ".", color="#9ec5e8", markersize=3, label="a step")
    means = np.convolve(losses, np.ones(window) / window, mode="valid")
    axes.plot(
        steps[window - 1 :], means, color="#1f5f99", label=f"mean of {window} steps"
    )
    axes.set(xlabel="step", ylabel="loss", title="Flow-matching loss")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_step_time(axes: Axes, rows: Sequence[StepMetrics]) -> None:
    tokens = {row.bucket: row.tokens for row in rows}
    batches = {row.bucket: row.batch for row in rows}
    counts = collections.Counter(row.bucket for row in rows)
    shown = [label for label, _ in counts.most_common(_MAX_LABELS)]
    labels = sorted(shown, key=lambda label: (tokens[label] / batches[label], label))
    more = f", {len(counts) - len(labels)} rarer ones left out"
    times = [
        [1e3 * row.seconds for row in rows if row.bucket == label] for label in labels
    ]
    axes.boxplot(
        times,
        orientation="horizontal",
        showfliers=False,
        medianprops={"color": "#c4571b", "linewidth": 2},
    )
    names = [f"{label}  x{batches[label]}" for label in labels]
    axes.set_yticks(range(1, len(labels) + 1), names, fontsize=8)
    axes.set_xlim(left=0)
    axes.set(
        xlabel="ms per step",
        title="Step time by bucket" + (more if len(counts) > len(labels) else ""),
    )
    axes.spines[["top", "right"]].set_visible(False)
