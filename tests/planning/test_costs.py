"""Tests of jaxload.planning.costs, with a clock that is made up."""

import io

import pytest
from rich.console import Console

from jaxload.balance.regression import Timing
from jaxload.planning import costs as measuring


def test_measured_costs_are_fitted_and_named(monkeypatch, debug_config):
    timings = [
        Timing(batch=b, tokens=s, seconds=0.001 + 1e-5 * b * s + 1e-8 * b * s * s)
        for s in (16, 32, 64)
        for b in (1, 2, 4)
    ]
    monkeypatch.setattr(measuring, "measure_steps", lambda *args, **kwargs: timings)
    cost = measuring.measured_fit(
        debug_config, seconds=1.0, console=Console(file=io.StringIO())
    ).cost
    assert cost(3, 48) == pytest.approx(0.001 + 3 * (48e-5 + 48**2 * 1e-8), rel=1e-3)
    assert cost.source.startswith("fitted to 9 micro-steps on 2 x")
