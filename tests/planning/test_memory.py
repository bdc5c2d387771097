"""Tests of jaxload.planning.memory, with a compiler that is made up."""

import dataclasses
import io

import pytest
from rich.console import Console

from jaxload.balance.memory import MemoryLine, MemoryModel
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.planning import memory as memory_limit
from jaxload.shapes.shape import Shape

SHAPE = Shape(1, 8, 8)


def confirmed(monkeypatch, config: Config, plan_of, bytes_of) -> tuple:
    """Plans one shape whose line says 10 bytes a sample; `bytes_of` is the truth."""
    tried = []

    def confirm(config, shape, batch, mesh, line):
        tried.append(batch)
        return line.bytes(batch), bytes_of(batch)

    def make(memory):
        plan = plan_of({SHAPE: 1_000})
        (bucket,) = plan.buckets
        batch = memory.max_batch(SHAPE)
        return dataclasses.replace(
            plan, buckets=(dataclasses.replace(bucket, batch=batch),)
        )

    monkeypatch.setattr(memory_limit, "confirm", confirm)
    balance = dataclasses.replace(config.balance, max_bytes=300, max_tokens=10_000)
    config = dataclasses.replace(config, balance=balance)
    line = MemoryLine(fixed=100.0, per_sample=10.0, source="made up")
    model = MemoryModel({SHAPE: line})
    quiet = Console(file=io.StringIO())
    return memory_limit.confirmed_plan(config, model, make, quiet), tried


def test_a_batch_that_is_as_large_as_predicted_stays(
    monkeypatch, debug_config, plan_of
):
    plan, tried = confirmed(monkeypatch, debug_config, plan_of, lambda b: 100 + 10 * b)
    assert (plan.buckets[0].batch, plan.buckets[0].num_bytes, tried) == (20, 300, [20])


def test_a_batch_that_is_larger_than_predicted_is_lowered(
    monkeypatch, debug_config, plan_of
):
    # The line breaks above 12 samples.
    plan, tried = confirmed(
        monkeypatch,
        debug_config,
        plan_of,
        lambda b: 100 + 10 * b + 20 * max(0, b - 12),
    )
    assert plan.buckets[0].num_bytes <= 300
    assert 1 < plan.buckets[0].batch < 20
    assert len(tried) == len(set(tried)) <= 3


def test_one_sample_that_is_too_large_is_flagged(monkeypatch, debug_config, plan_of):
    plan, _ = confirmed(monkeypatch, debug_config, plan_of, lambda b: 1_000 + 99 * b)
    assert (plan.buckets[0].batch, plan.buckets[0].over_budget) == (1, True)


def test_memory_that_never_settles_is_an_error(monkeypatch, debug_config, plan_of):
    with pytest.raises(InputError, match=r"balance.max_bytes=300: no batch sizes"):
        confirmed(monkeypatch, debug_config, plan_of, lambda b: 301)
