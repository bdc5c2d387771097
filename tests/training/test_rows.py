"""Tests of rows of different lengths in a micro-step: a row equals its sample alone."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxload.balance.form import Grid, Length
from jaxload.balance.program import REMATS, Program, Remat
from jaxload.models.embeddings import without_padding
from jaxload.models.layers import run_stacked
from jaxload.models.mmdit import blocks as mmdit_blocks
from jaxload.models.mmdit import model as mmdit_model
from jaxload.models.presets import preset
from jaxload.models.wan import blocks as wan_blocks
from jaxload.models.wan import model as wan_model
from jaxload.ops import attention
from jaxload.training import objective
from jaxload.training.config import FlowConfig, OptimizerConfig
from jaxload.training.step import Sums, Trainer, make_trainer, split_trained
from tests.models.tiny import make, normal, randomized

GRIDS = [(1, 1, 1), (5, 1, 2), (3, 2, 3)]
LENGTHS = [math.prod(grid) for grid in GRIDS]
ROWS = Program(form=Length(max(LENGTHS)), batch=len(GRIDS))
KINDS = ["wan", "mmdit"]
STEP = 7

pytestmark = pytest.mark.slow


@functools.cache
def trainer_of(kind: str, dtype: str = "float32") -> Trainer:
    """Returns the trainer of a small model with adapters."""
    model = dataclasses.replace(preset(f"{kind}-tiny"), lora_rank=2)
    model = dataclasses.replace(model, compute_dtype=dtype)
    return make_trainer(
        model, FlowConfig(), OptimizerConfig(learning_rate=1e-4), seed=0
    )


@functools.cache
def model_of(kind: str) -> nnx.Module:
    return randomized(make(trainer_of(kind).model))


@functools.cache
def samples(kind: str) -> list[dict[str, jax.Array]]:
    """Returns a batch for each sample alone."""
    model = trainer_of(kind).model
    width = math.prod(model.patch) * model.channels
    return [
        {
            "tokens": normal(10 + i, 1, length, width).astype(jnp.bfloat16),
            "text": normal(20 + i, 1, model.num_text_tokens, model.text_dim),
            "id": jnp.array([100 + i], jnp.int32),
        }
        for i, length in enumerate(LENGTHS)
    ]


def rows(kind: str, padding: float = 0.0) -> dict[str, jax.Array]:
    """Returns one batch of all samples, whose tokens are followed by `padding`."""

    def pad(tokens: jax.Array) -> jax.Array:
        widths = ((0, 0), (0, max(LENGTHS) - tokens.shape[1]), (0, 0))
        return jnp.pad(tokens, widths, constant_values=jnp.bfloat16(padding))

    padded = [sample | {"tokens": pad(sample["tokens"])} for sample in samples(kind)]
    batch = jax.tree.map(lambda *parts: jnp.concatenate(parts), *padded)
    return batch | {"grid": jnp.array(GRIDS, jnp.int32)}


def micro_step(
    trainer: Trainer, program: Program, model: Any, batch: dict[str, jax.Array]
) -> Sums:
    """Returns the sums of a micro-batch."""
    zero = trainer.zero_sums(model[0], 1)
    step = jnp.asarray(STEP, jnp.int32)
    return trainer.micro_step(program, step, model, zero, batch)[0]


def all_trained(kind: str) -> tuple[nnx.State, nnx.State]:
    """Returns all parameters as trained ones, those of the adapters included."""
    return nnx.state(model_of(kind)), nnx.State({})


@functools.cache
def each_alone(kind: str, dtype: str = "float32") -> list[Sums]:
    """Returns the sums of each sample alone."""
    trainer = trainer_of(kind, dtype)

    @jax.jit
    def run(model: Any) -> list[Sums]:
        return [
            micro_step(trainer, Program(form=form, batch=1), model, batch)
            for form, batch in zip(forms(trainer), samples(kind), strict=True)
        ]

    return run(all_trained(kind))


def alone(kind: str, dtype: str = "float32") -> Sums:
    """Returns the sums over samples that each run alone."""
    found = each_alone(kind, dtype)
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *found)


def forms(trainer: Trainer) -> list[Grid]:
    pf, ph, pw = trainer.model.patch
    return [Grid(f * pf, h * ph, w * pw) for f, h, w in GRIDS]


@functools.cache
def program(kind: str, dtype: str = "float32", remat: Remat = "none") -> Any:
    """Compiles the micro-step of all samples as rows of one batch.

    The arguments are the parameters, the batch, and the value that replaces its padding
    after the patch embedding; None replaces nothing.
    """
    trainer = trainer_of(kind, dtype)
    is_padding_BS = jnp.arange(max(LENGTHS))[None] >= jnp.array(LENGTHS)[:, None]

    def run(model: Any, batch: dict[str, jax.Array], value: float | None) -> Sums:
        def fill_padding(x_BSD: jax.Array) -> jax.Array:
            if value is None:
                return x_BSD
            return jnp.where(is_padding_BS[..., None], value, x_BSD).astype(x_BSD.dtype)

        def run_filled(blocks: Any, run: Any, x: Any, **options: Any) -> Any:
            if isinstance(x, tuple):
                x = (fill_padding(x[0]), *x[1:])
            elif x.shape[1] == max(LENGTHS):
                x = fill_padding(x)
            return run_stacked(blocks, run, x, **options)

        with pytest.MonkeyPatch.context() as patch:
            for module in (wan_model, mmdit_model):
                patch.setattr(module, "run_stacked", run_filled)
            same = dataclasses.replace(ROWS, remat=remat)
            return micro_step(trainer, same, model, batch)

    return jax.jit(run)


def together(kind: str, *options: Any, value: float | None = None) -> Sums:
    """Returns the sums of the rows."""
    return program(kind, *options)(all_trained(kind), rows(kind), value)


def assert_close(
    found: Sums,
    expected: Sums,
    tolerance: float,
    of_gradients: float,
    rounding: float = 1e-6,
) -> None:
    """Compares losses, and gradients relative to each tensor's largest value.

    Tensors whose values are all below `rounding`, as a share of the largest of all
    tensors, are compared relative to that largest value: a bias of all keys changes no
    softmax, so that its gradient is rounding alone.
    """
    assert int(found.count[0]) == int(expected.count[0]) == len(GRIDS)
    assert int(found.num_tokens[0]) == int(expected.num_tokens[0])
    np.testing.assert_allclose(found.loss, expected.loss, rtol=tolerance)
    for name, metric in expected.metrics.items():
        np.testing.assert_allclose(found.metrics[name], metric, rtol=tolerance)
    scale = max(np.abs(x).max() for x in jax.tree.leaves(expected.grads))
    for (path, x), y in zip(
        jax.tree.leaves_with_path(found.grads),
        jax.tree.leaves(expected.grads),
        strict=True,
    ):
        largest = np.abs(y).max()
        largest = scale if largest < rounding * scale else largest
        name = jax.tree_util.keystr(path)
        assert np.abs(x - y).max() <= of_gradients * largest, name


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_equals_its_sample_alone(kind: str, remat: Remat):
    found = together(kind, "float32", remat)
    assert_close(found, alone(kind), 1e-6, of_gradients=1e-5)
    assert int(found.num_tokens[0]) == sum(LENGTHS)


@pytest.mark.parametrize("row", range(len(GRIDS)))
@pytest.mark.parametrize("kind", KINDS)
def test_no_row_hides_behind_another(kind: str, row: int):
    """Fills all rows with one sample, so that its own errors show."""
    batch = {name: jnp.stack([x[row]] * len(GRIDS)) for name, x in rows(kind).items()}
    found = program(kind)(all_trained(kind), batch, None)
    one = each_alone(kind)[row]
    assert_close(
        found,
        jax.tree.map(lambda x: len(GRIDS) * x, one),
        1e-6,
        of_gradients=1e-5,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_get_the_gradients_of_samples_alone(kind: str):
    adapters, frozen = split_trained(model_of(kind))
    run = jax.jit(functools.partial(micro_step, trainer_of(kind), ROWS))
    found, expected = run((adapters, frozen), rows(kind)), alone(kind)
    of_adapters, _ = nnx.split_state(expected.grads, nnx.LoRAParam, ...)
    assert len(jax.tree.leaves(of_adapters)) > 10
    expected = dataclasses.replace(expected, grads=of_adapters)
    assert_close(found, expected, 1e-6, of_gradients=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_in_bfloat16_is_near_its_sample_alone(kind: str):
    found, expected = together(kind, "bfloat16"), alone(kind, "bfloat16")
    # Four times the largest errors measured, 1.2e-3 and 3.4e-2: sums of other lengths
    # round to 8 bits in another order.
    assert_close(found, expected, 5e-3, of_gradients=0.14, rounding=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_padded_input_never_leaks(kind: str):
    clean, dirty = (rows(kind, padding) for padding in (0.0, math.nan))
    run, model = program(kind), all_trained(kind)
    assert num_different(run(model, clean, None), run(model, dirty, None)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_zeros_its_padded_input(kind: str, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def keep_tokens(x: jax.Array, lengths: jax.Array | None) -> jax.Array:
        """Zeros the padding of the error, but not that of the tokens before it."""
        calls.append(x)
        return x if len(calls) == 1 else without_padding(x, lengths)

    monkeypatch.setattr(objective, "without_padding", keep_tokens)
    run, model = program.__wrapped__(kind), all_trained(kind)
    clean, dirty = (rows(kind, padding) for padding in (0.0, math.nan))
    assert num_different(run(model, clean, None), run(model, dirty, None)) == 0
    assert len(calls) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_values_in_padded_rows_change_no_bit(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    zeros, others = (together(kind, value=value) for value in (0.0, -3e4))
    assert num_different(zeros, others) == 0
    # Control: without the lengths of keys, other rows attend to the padding.
    for blocks in (wan_blocks, mmdit_blocks):
        monkeypatch.setattr(blocks, "attention", ignore_lengths)
    unmasked = functools.partial(
        program.__wrapped__(kind), all_trained(kind), rows(kind)
    )
    assert num_different(unmasked(0.0), unmasked(-3e4)) > 10


def num_different(one: Any, other: Any) -> int:
    """Counts the arrays of two trees that differ in any bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return sum(not np.array_equal(x, y) for x, y in pairs)


def ignore_lengths(*args: Any, key_lengths: Any = None, **options: Any) -> jax.Array:
    return attention(*args, **options)
