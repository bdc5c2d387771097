"""Figure of a training run."""

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxload.console import visible
from jaxload.training.events import STEP, Event

_MAX_LABELS = 16
_MAX_DRAWN = 1e30
_MAX_LABEL = 40  # Characters; enough for the shapes of three micro-batches.


def draw_figure(events: Sequence[Event], path: Path) -> None:
    """Draws loss by step and step time by bucket.

    Only step events are drawn; each plot skips events without the values that it needs.
    """
    steps = [event for event in events if event.name == STEP]
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    with_loss = [event for event in steps if _is_number(event.values.get("loss"))]
    if with_loss:
        _draw_loss(left, with_loss)
    timed = [
        event
        for event in steps
        if _is_number(event.values.get("seconds"))
        and isinstance(event.values.get("bucket"), str)
    ]
    if timed:
        _draw_step_time(right, timed)
    figure.savefig(path, dpi=120)


def _is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a value of an event is a number that can be drawn."""
    return type(value) in (int, float) and abs(value) < _MAX_DRAWN


def _draw_loss(axes: Axes, events: Sequence[Event]) -> None:
    steps = np.array([event.step for event in events])
    losses = np.array([event.values["loss"] for event in events])
    window = max(1, len(events) // 20)
    axes.plot(steps, losses, ".", color="#9ec5e8", markersize=3, label="a step")
    means = np.convolve(losses, np.ones(window) / window, mode="valid")
    axes.plot(
        steps[window - 1 :], means, color="#1f5f99", label=f"mean of {window} steps"
    )
    axes.set(xlabel="step", ylabel="loss", title="Flow-matching loss")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_step_time(axes: Axes, events: Sequence[Event]) -> None:
    times: dict[str, list[float]] = collections.defaultdict(list)
    last: dict[str, Mapping[str, Any]] = {}
    for event in events:
        bucket = event.values["bucket"]
        times[bucket].append(1e3 * event.values["seconds"])
        last[bucket] = event.values
    counts = collections.Counter({label: len(times[label]) for label in times})
    shown = [label for label, _ in counts.most_common(_MAX_LABELS)]
    labels = sorted(shown, key=lambda label: (_sample_tokens(last[label]), label))
    more = f", {len(counts) - len(labels)} rarer ones left out"
    axes.boxplot(
        [times[label] for label in labels],
        orientation="horizontal",
        showfliers=False,
        medianprops={"color": "#c4571b", "linewidth": 2},
    )
    names = [_label(label, last[label]) for label in labels]
    axes.set_yticks(range(1, len(labels) + 1), names, fontsize=8)
    axes.set_xlim(left=0)
    axes.set(
        xlabel="ms per step",
        title="Step time by bucket" + (more if len(counts) > len(labels) else ""),
    )
    axes.spines[["top", "right"]].set_visible(False)


def _sample_tokens(values: Mapping[str, Any]) -> float:
    """Returns the mean number of tokens per sample of a step; 0 if not known."""
    tokens, batch = (
        value if _is_number(value) else 0
        for value in (values.get("tokens"), values.get("batch"))
    )
    return tokens / (batch or 1)


def _label(bucket: str, values: Mapping[str, Any]) -> str:
    batch = values.get("batch")
    # Without $, which would start a formula, and control characters, without glyphs.
    name = visible(bucket).replace("$", "")[:_MAX_LABEL]
    return f"{name}  x{batch}" if _is_number(batch) else name
