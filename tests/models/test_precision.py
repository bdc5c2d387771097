"""Tests the matmul precision of models: a GPU's default for float32 has 10 bits."""

import dataclasses

import jax
import pytest
from flax import nnx

from jaxload.models import ModelConfig
from tests.models.tiny import CONFIGS, call, inputs, make


def matmuls(config: ModelConfig) -> list[str]:
    """Returns the matmuls of a forward and backward pass, as StableHLO lines."""
    graphdef, params = nnx.split(nnx.eval_shape(lambda: make(config)))

    def loss(params: nnx.State, given: dict[str, jax.Array]) -> jax.Array:
        return call(nnx.merge(graphdef, params), given).sum()

    text = jax.jit(jax.grad(loss)).lower(params, inputs(config)).as_text()
    return [line for line in text.splitlines() if "stablehlo.dot_general" in line]


@pytest.mark.parametrize("kind", CONFIGS)
def test_float32_is_multiplied_as_float32(kind: str):
    lines = matmuls(dataclasses.replace(CONFIGS[kind], compute_dtype="float32"))
    assert len(lines) > 50
    for line in lines:
        assert "precision = [HIGHEST, HIGHEST]" in line


def test_bfloat16_is_multiplied_at_its_own_rate():
    lines = matmuls(dataclasses.replace(CONFIGS["wan"], compute_dtype="bfloat16"))
    of_bfloat16 = [line for line in lines if "xbf16>, tensor<" in line]
    assert len(of_bfloat16) > 20
    assert not any("HIGHEST" in line for line in of_bfloat16)
