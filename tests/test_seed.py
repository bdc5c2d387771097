"""Tests of jaxload.seed."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.media.config import SyntheticConfig
from jaxload.sampling.config import SampleConfig
from jaxload.seed import MAX_SEED, check_seed
from jaxload.training.config import TrainConfig


@pytest.mark.parametrize("seed", [0, MAX_SEED])
def test_seeds_of_32_bits_are_accepted(seed: int):
    check_seed(seed, "x")
    assert TrainConfig(num_steps=1, seed=seed).seed == seed


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 2**64])
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: TrainConfig(num_steps=1, seed=seed),
        lambda seed: SyntheticConfig(num_samples=1, clips=("1x16x16",), seed=seed),
        lambda seed: SampleConfig(seed=seed),
    ],
)
def test_seeds_that_would_repeat_another_are_refused(make, seed: int):
    with pytest.raises(InputError, match=rf"seed={seed}: expected a seed from 0 to"):
        make(seed)


def test_jax_keeps_32_bits_of_a_seed():
    """Shows that the bound is necessary."""
    one, other = (jax.random.key_data(jax.random.key(s)) for s in (5, 2**32 + 5))
    np.testing.assert_array_equal(one, other)


def test_all_seeds_of_a_config_are_checked(debug_config: Config):
    with pytest.raises(InputError, match=r"train\.seed"):
        dataclasses.replace(debug_config.train, seed=2**32)
