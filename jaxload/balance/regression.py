"""Regresses the cost of a micro-batch from timings, with measures of accuracy."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

from jaxload.balance.calibration import (
    Calibration,
    CalibrationPoint,
    Goodness,
    MixedRows,
    PowerLaw,
)
from jaxload.balance.cost import CostLaw
from jaxload.balance.program import Remat
from jaxload.errors import InputError

MIN_POINTS = 5
MIN_LENGTHS = 3
_HELD_OUT_SHARE = 0.25
_CLEARLY = 0.8  # Share of the squared errors; noise alone changes them less.
_EXPONENTS = np.linspace(0.5, 3.0, 51)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one micro-batch: `batch` rows of `tokens` tokens on each device."""

    batch: int
    tokens: int
    seconds: float
    mean_length: float | None = None
    """Mean tokens of the samples; None if the rows have no padding."""

    def __post_init__(self):
        if min(self.batch, self.tokens) < 1 or not 0 < self.seconds < math.inf:
            raise InputError(
                f"timing of {self.batch} x {self.tokens} tokens: expected 1 or more of "
                f"both and a positive time, got {self.seconds} s; measure it again"
            )


def regress_costs(
    timings: Sequence[Timing],
    *,
    source: str,
    remat: Remat = "none",
    model: Mapping[str, Any] | None = None,
    devices_per_group: int = 1,
) -> Calibration:
    """Regresses both laws from three quarters of the points, and tests on the rest.

    Relative errors are minimised, because a plan compares short micro-batches as well
    as long ones. No coefficient is negative. The exponent of the power law is searched;
    for each exponent, its other two coefficients are a least-squares problem.

    Rows with padding are not used for the laws. They decide whether attention takes
    time for padding: the prediction that is nearer to their times is right.
    """
    points = sorted(
        (t for t in timings if t.mean_length is None),
        key=lambda t: (t.tokens, t.batch),
    )
    _check_enough(points)
    batch, tokens, seconds = (
        np.array([getattr(point, name) for point in points], float)
        for name in ("batch", "tokens", "seconds")
    )
    columns = _two_term_columns(batch, tokens)
    held_out = _choose_held_out(columns)
    used = ~held_out
    fixed, per_token, per_token_squared = _least_squares(columns[used], seconds[used])
    if not (per_token or per_token_squared):
        raise InputError(
            f"{len(points)} timings that do not grow with tokens: expected longer ones "
            "to take longer; measure longer micro-batches, or on a machine less busy"
        )
    cost = CostLaw(
        fixed=float(fixed),
        per_token=float(per_token),
        per_token_squared=float(per_token_squared),
    )
    power_law = _regress_power_law(batch[used], tokens[used], seconds[used])
    two_term, power = (
        np.asarray(law(batch, tokens), float) for law in (cost, power_law)
    )
    mixed = _mixed_rows(timings, cost)
    return Calibration(
        cost=cost,
        source=source,
        remat=remat,
        model=model or {},
        devices_per_group=devices_per_group,
        power_law=power_law,
        cost_goodness=_goodness(two_term, seconds, held_out),
        power_law_goodness=_goodness(power, seconds, held_out),
        points=tuple(
            CalibrationPoint(
                batch=point.batch,
                tokens=point.tokens,
                seconds=point.seconds,
                two_term=float(two_term[i]),
                power_law=float(power[i]),
                held_out=bool(held_out[i]),
            )
            for i, point in enumerate(points)
        ),
        mixed=mixed,
        skips_padding=_skips_padding(mixed),
    )


def _mixed_rows(timings: Sequence[Timing], cost: CostLaw) -> tuple[MixedRows, ...]:
    found = []
    for t in timings:
        if t.mean_length is not None:
            sample = float(cost.sample(t.tokens, t.mean_length))
            found.append(
                MixedRows(
                    batch=t.batch,
                    tokens=t.tokens,
                    mean_length=t.mean_length,
                    seconds=t.seconds,
                    padded=float(cost(t.batch, t.tokens)),
                    skipping=cost.fixed + t.batch * sample,
                )
            )
    return tuple(sorted(found, key=lambda rows: (rows.tokens, rows.batch)))


def _skips_padding(mixed: Sequence[MixedRows]) -> bool:
    """Returns whether the predictions without padding are clearly nearer."""
    padded = sum((rows.padded / rows.seconds - 1) ** 2 for rows in mixed)
    skipping = sum((rows.skipping / rows.seconds - 1) ** 2 for rows in mixed)
    return skipping < _CLEARLY * padded


def _check_enough(points: Sequence[Timing]) -> None:
    lengths = {point.tokens for point in points}
    if len(points) < MIN_POINTS or len(lengths) < MIN_LENGTHS:
        raise InputError(
            f"{len(points)} timings of {len(lengths)} lengths: expected {MIN_POINTS} "
            f"or more of {MIN_LENGTHS} lengths or more; measure more"
        )
    batch = np.array([point.batch for point in points], float)
    tokens = np.array([point.tokens for point in points], float)
    if not _determined(_two_term_columns(batch, tokens)):
        raise InputError(
            f"{len(points)} timings that cannot tell a cost per micro-batch from one "
            "per token: expected several batch sizes of a length; measure more"
        )


def _two_term_columns(batch: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(batch), batch * tokens, batch * tokens**2], axis=1)


def _determined(columns: np.ndarray) -> bool:
    rank = np.linalg.matrix_rank(columns / columns.max(axis=0))
    return int(rank) == columns.shape[1]


def _choose_held_out(columns: np.ndarray) -> np.ndarray:
    """Marks points to hold out, spread over the range of tokens per micro-batch.

    Timings do not influence the choice. The first row, the last row and the row with
    the most tokens per micro-batch are never held out, nor is any point without which
    the rest would not determine the regression.
    """
    count = len(columns)
    wanted = max(1, round(_HELD_OUT_SHARE * count))
    ends = {0, count - 1, int(columns[:, 1].argmax())}
    # Tokens per micro-batch mix lengths and batch sizes. In the order of lengths, a
    # regular grid would hold out the same batch size each time.
    order = np.argsort(columns[:, 1], kind="stable").tolist()
    inner = [i for i in order if i not in ends]
    middles = (np.arange(wanted) + 0.5) * len(inner) / wanted
    spread = [inner[int(middle)] for middle in middles]
    held_out = np.zeros(count, bool)
    for i in dict.fromkeys([*spread, *inner]):
        if held_out.sum() < wanted:
            held_out[i] = True
            held_out[i] = _determined(columns[~held_out])
    assert held_out.any()
    return held_out


def _least_squares(columns: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Returns the non-negative coefficients with the least squared relative error."""
    relative = columns / seconds[:, None]
    # Columns differ by many orders of magnitude, so each is scaled to at most 1.
    scale = relative.max(axis=0)
    return optimize.nnls(relative / scale, np.ones_like(seconds))[0] / scale


def _regress_power_law(
    batch: np.ndarray, tokens: np.ndarray, seconds: np.ndarray
) -> PowerLaw:
    def solve(exponent: float) -> PowerLaw:
        columns = np.stack([np.ones_like(batch), batch * tokens**exponent], axis=1)
        fixed, scale = _least_squares(columns, seconds)
        return PowerLaw(
            fixed=float(fixed), scale=float(scale), exponent=float(exponent)
        )

    def error(exponent: float) -> float:
        return float(np.sum((solve(exponent)(batch, tokens) / seconds - 1) ** 2))

    best = int(np.argmin([error(exponent) for exponent in _EXPONENTS]))
    around = (
        _EXPONENTS[max(best - 1, 0)],
        _EXPONENTS[min(best + 1, len(_EXPONENTS) - 1)],
    )
    found = optimize.minimize_scalar(
        error, bounds=around, method="bounded", options={"xatol": 1e-9}
    )
    return solve(found.x)


def _goodness(
    predicted: np.ndarray, seconds: np.ndarray, held_out: np.ndarray
) -> Goodness:
    unexplained = np.sum((predicted - seconds)[~held_out] ** 2)
    variance = np.sum((seconds[~held_out] - seconds[~held_out].mean()) ** 2)
    errors = np.abs(predicted / seconds - 1)
    return Goodness(
        r2=float(1 - unexplained / variance) if variance else 0.0,
        held_out_error=float(errors[held_out].mean()),
    )
