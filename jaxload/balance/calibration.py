"""Calibrations: timed micro-steps, and the cost laws regressed from them."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxload.balance.cost import CostLaw, Number
from jaxload.balance.program import REMATS, Remat
from jaxload.errors import InputError

_FORMAT = 4
_LEAST_SECONDS, _MOST_SECONDS = 1e-18, 1e6  # Of one token, and of any coefficient.


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
class MixedRows:
    """A timing of rows with padding, with two predictions, in seconds."""

    batch: int
    tokens: int
    """Tokens of a row, with padding."""

    mean_length: float
    """Mean tokens of the samples."""

    seconds: float
    padded: float
    """Prediction if tokens attend to the padding as well."""

    skipping: float
    """Prediction if tokens attend only to the tokens of their sample."""


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

    mixed: tuple[MixedRows, ...] = ()
    """Timed rows with padding, which decide `skips_padding`."""

    skips_padding: bool = False
    """True if attention takes no time for keys that are padding."""

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
            skips = content["skips_padding"]
            if not isinstance(skips, bool):
                raise ValueError(f"skips_padding={skips!r:.80}")
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
                mixed=tuple(_record(MixedRows, row) for row in content["mixed"]),
                skips_padding=skips,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{name}: not a calibration ({error!r:.200}); write it anew with "
                "jaxload.calibrate"
            ) from error


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
