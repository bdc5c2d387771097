"""Report of measured costs: points and laws as a table, errors as a figure."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich.table import Table

from jaxload.balance.calibration import Calibration, CalibrationPoint
from jaxload.balance.cost import CostLaw
from jaxload.console import Console, visible

# Attribute of a point, name of the law, and its colour.
_LAWS = (
    ("two_term", "two terms", "#1f5f99"),
    ("power_law", "power law", "#c4571b"),
)


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Prints every point with the prediction of both laws, then the laws themselves."""
    table = Table(title=visible(f"Micro-step times, {calibration.source}"), box=None)
    names = ("batch", "tokens", "measured ms", "two terms ms", "error")
    for name in (*names, "power law ms", "error"):
        table.add_column(name, justify="right")
    table.add_column("")
    for point in calibration.points:
        table.add_row(
            f"{point.batch:,}",
            f"{point.tokens:,}",
            f"{1e3 * point.seconds:,.2f}",
            f"{1e3 * point.two_term:,.2f}",
            f"{point.two_term_residual:+.1%}",
            f"{1e3 * point.power_law:,.2f}",
            f"{point.power_law_residual:+.1%}",
            "held out" if point.held_out else "",
        )
    console.print(table)
    for line in _describe_laws(calibration):
        console.say(line)


def _local_exponent(cost: CostLaw, tokens: int) -> float:
    """Returns d log(cost) / d log(tokens) of a sample at a number of tokens."""
    longer = float(cost.sample(1.01 * tokens)) / float(cost.sample(tokens))
    return float(np.log(longer) / np.log(1.01))


def _describe_laws(calibration: Calibration) -> list[str]:
    cost, power = calibration.cost, calibration.power_law
    exponents = (
        _local_exponent(cost, tokens)
        for tokens in (calibration.points[0].tokens, calibration.points[-1].tokens)
    )
    ends = " to ".join(f"{exponent:.2f}" for exponent in exponents)
    laws = (
        (
            f"two terms: c0 {cost.fixed:.3g} s, a {cost.per_token:.3g} s, b "
            f"{cost.per_token_squared:.3g} s; local exponent {ends}",
            calibration.cost_goodness,
        ),
        (
            f"power law: c {power.fixed:.3g} s, k {power.scale:.3g} s, p "
            f"{power.exponent:.2f}",
            calibration.power_law_goodness,
        ),
    )
    lines = [
        f"{text}; R^2 {goodness.r2:.4f}, error on held-out points "
        f"{goodness.held_out_error:.1%}"
        for text, goodness in laws
    ]
    return lines + _describe_padding(calibration)


def _describe_padding(calibration: Calibration) -> list[str]:
    """Returns a line about rows with padding, if any were timed."""
    if not calibration.mixed:
        return []
    errors = [
        np.mean([abs(getattr(p, name) / p.seconds - 1) for p in calibration.mixed])
        for name in ("padded", "skipping")
    ]
    skips = "takes no time" if calibration.skips_padding else "takes time"
    return [
        f"padding: attention {skips} for it; mean error on {len(calibration.mixed)} "
        f"points of mixed rows {errors[0]:.1%} if it takes time, {errors[1]:.1%} if not"
    ]


def draw_calibration(calibration: Calibration, path: Path) -> None:
    """Draws predicted against measured times, and errors against sample length."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_predictions(left, calibration.points)
    _draw_residuals(right, calibration.points)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_predictions(axes: Axes, points: Sequence[CalibrationPoint]) -> None:
    measured = np.array([1e3 * point.seconds for point in points])
    ends = [measured.min(), measured.max()]
    axes.plot(ends, ends, color="#999999", linewidth=1)
    for name, label, color in _LAWS:
        predicted = np.array([1e3 * getattr(point, name) for point in points])
        _scatter(axes, measured, predicted, points, label=label, color=color)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="measured ms",
        ylabel="predicted ms",
        title="Micro-step time; hollow: held out of the regression",
    )
    axes.legend(frameon=False)


def _draw_residuals(axes: Axes, points: Sequence[CalibrationPoint]) -> None:
    tokens = np.array([point.tokens for point in points], float)
    axes.axhline(0, color="#999999", linewidth=1)
    for side, (name, label, color) in zip((0.97, 1.03), _LAWS, strict=True):
        errors = [1e2 * getattr(point, f"{name}_residual") for point in points]
        # Shifts the laws apart a little, so that neither hides the other.
        _scatter(
            axes, tokens * side, np.array(errors), points, label=label, color=color
        )
    axes.set(
        xscale="log",
        xlabel="tokens of a sample",
        ylabel="error, %",
        title="Predicted less measured",
    )
    lengths = np.unique(tokens)
    axes.set_xticks(lengths, [f"{length:,.0f}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())


def _scatter(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    points: Sequence[CalibrationPoint],
    *,
    label: str,
    color: str,
) -> None:
    held_out = np.array([point.held_out for point in points])
    axes.plot(x[~held_out], y[~held_out], "o", color=color, label=label)
    axes.plot(x[held_out], y[held_out], "o", color=color, fillstyle="none")
