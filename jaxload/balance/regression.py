"""Regresses the cost of a micro-batch from timings, with measures of accuracy."""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

from jaxload.balance.cost import CostLaw, Number
from jaxload.balance.program import REMATS, Remat
from jaxload.errors import InputError

MIN_POINTS = 5
MIN_LENGTHS = 3
_FORMAT = 3
_HELD_OUT_SHARE = 0.25
_LEAST_SECONDS, _MOST_SECONDS = 1e-18, 1e6  # Of one token, and of any coefficient.
_EXPONENTS = np.linspace(0.5, 3.0, 51)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one micro-batch: `batch` samples of `tokens` tokens on each device."""

    batch: int
    tokens: int
    seconds: float

    def __post_init__(self):
        if min(self.batch, self.tokens) < 1 or not 0 < self.seconds < math.inf:
            raise InputError(
                f"timing of {self.batch} x {self.tokens} tokens: expected 1 or more of "
                f"both and a positive time, got {self.seconds} s; measure it again"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """`fixed + scale * B * S^exponent`: the law behind the rule `B * S^p <= M_comp`."""

    fixed: float
    scale: float
    exponent: float

    def __call__(self, batch: Number, tokens: Number) -> Number:
        return self.fixed + self.scale * batch * np.power(
            np.asarray(tokens, float), self.exponent
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodness:
    """Accuracy of a regressed law."""

    r2: float
    """Share of the variance explained, over the points used in the regression."""

    held_out_error: float
    """Mean absolute relative error, over the held-out points."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationPoint:
    """A timing with the predictions of both laws, in seconds."""

    batch: int
    tokens: int
    seconds: float
    two_term: float
    power_law: float
    held_out: bool

    @property
    def two_term_residual(self) -> float:
        """Relative error of the two-term law; positive if it predicts too much."""
        return self.two_term / self.seconds - 1

    @property
    def power_law_residual(self) -> float:
        """Relative error of the power law; positive if it predicts too much."""
        return self.power_law / self.seconds - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """Two laws regressed from the same timings: a two-term law and a power law."""

    cost: CostLaw
    """Two-term law for the seconds of n samples of S tokens on each device."""

    source: str
    """Devices and number of timed micro-steps."""

    remat: Remat
    """Remat policy of the timed micro-steps."""

    model: Mapping[str, Any]
    """Config of the timed model, as JSON values."""

    devices_per_group: int
    """Number of devices that shared a micro-step."""

    power_law: PowerLaw
    cost_goodness: Goodness
    power_law_goodness: Goodness
    points: tuple[CalibrationPoint, ...]
    """Timed points by ascending tokens, then batch."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the regression as JSON values that `from_dict` reads."""
        return {"format": _FORMAT} | dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: Any, *, name: str) -> "Calibration":
        """Reads a regression; error messages call it `name`."""
        try:
            found = content["format"]
            if found != _FORMAT:
                raise ValueError(f"format {found!r:.80}, expected {_FORMAT}")
            source, remat = content["source"], content["remat"]
            model, devices = content["model"], content["devices_per_group"]
            if not isinstance(model, dict) or type(devices) is not int:
                raise ValueError(
                    f"model={model!r:.80}, devices_per_group={devices!r:.80}"
                )
            if not isinstance(source, str):
                raise ValueError(f"source={source!r:.80}")
            if remat not in REMATS:
                raise ValueError(f"remat={remat!r:.80}")
            return cls(
                cost=_priced(_record(CostLaw, content["cost"])),
                source=source,
                remat=remat,
                model=model,
                devices_per_group=devices,
                power_law=_record(PowerLaw, content["power_law"]),
                cost_goodness=_record(Goodness, content["cost_goodness"]),
                power_law_goodness=_record(Goodness, content["power_law_goodness"]),
                points=tuple(
                    _record(CalibrationPoint, row) for row in content["points"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{name}: not a calibration ({error!r:.200}); write it anew with "
                "jaxload.calibrate"
            ) from error


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
    """
    points = sorted(timings, key=lambda t: (t.tokens, t.batch))
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
                **dataclasses.asdict(point),
                two_term=float(two_term[i]),
                power_law=float(power[i]),
                held_out=bool(held_out[i]),
            )
            for i, point in enumerate(points)
        ),
    )


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


def _priced(cost: CostLaw) -> CostLaw:
    """Returns a law that a file states, if it prices all samples."""
    values = (cost.fixed, cost.per_token, cost.per_token_squared, cost.per_sample)
    growth = cost.per_token + cost.per_token_squared
    if min(values) < 0 or max(values) > _MOST_SECONDS or growth < _LEAST_SECONDS:
        raise ValueError(
            f"cost={dataclasses.asdict(cost)}, expected 0 to {_MOST_SECONDS:g} s each, "
            "and more than 0 s per token"
        )
    return cost


def _record(cls: Any, content: Mapping[str, Any]) -> Any:
    """Builds a dataclass of plain fields, checking the type of each."""
    record = cls(**content)
    for field in dataclasses.fields(cls):
        value = getattr(record, field.name)
        allowed = (int, float) if field.type is float else (field.type,)
        # Not math.isfinite, which fails for integers that no float can hold.
        finite = field.type is not float or abs(value) <= sys.float_info.max
        if type(value) not in allowed or not finite:
            raise ValueError(f"{field.name}={value!r:.80}")
    return record
