"""Tests of the errors for invalid model inputs and configs."""

import dataclasses
import inspect
import math
import re
from typing import Any

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxload.errors import InputError
from jaxload.models import MMDiT, ModelConfig, WanTransformer, all_presets, preset
from jaxload.models.embeddings import to_patches
from tests.models.tiny import CONFIGS, inputs, make


def call_unchecked(config: ModelConfig, given: dict[str, Any]) -> None:
    """Calls a model without jaxtyping's checks, which would raise first.

    Only tests have these checks.
    """
    model = nnx.eval_shape(lambda: make(config))
    unchecked = type(
        type(model).__name__,
        (type(model),),
        {"velocity": inspect.unwrap(type(model).velocity)},
    )
    model.__class__ = unchecked
    inspect.unwrap(unchecked.__call__)(model, **given)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("wan", {"latent_BFHWC": (2, 3, 5, 6, 16)}, "height is 5: .* 2; .* 4 or 6"),
        ("wan", {"latent_BFHWC": (2, 3, 4, 1, 16)}, "width is 1: .* nearest is 2"),
        ("wan", {"latent_BFHWC": (2, 0, 4, 6, 16)}, "frames is 0: .* nearest is 1"),
        ("wan", {"latent_BFHWC": (2, 3, 4, 6, 12)}, "of 16 channels, got 12"),
        ("wan", {"latent_BFHWC": (3, 4, 6, 16)}, r"latents of shape \[batch, frames"),
        ("wan", {"timestep_B": (3,)}, r"timestep of shape \(2,\), got \(3,\)"),
        ("wan", {"text_BTE": (2, 12, 15)}, r"text of shape \[2, tokens, 16\], got"),
        ("wan", {"text_BTE": (2, 13, 16)}, "1 to 12 text tokens, got 13; cut the"),
        (
            "wan",
            {"image": (2, 4, 10)},
            "no image, as image_dim=0, got one",
        ),
        ("wan-image", {"image": None}, "expected an image, as image_dim=10, got"),
        ("wan-image", {"image": (2, 5, 10)}, r"image of shape \[2, 4, 10\], got"),
        ("wan-image", {"image": (4, 10)}, r"image of shape \[2, 4, 10\], got \(4, 10"),
        ("wan-image", {"image": (10,)}, r"image of shape \[2, 4, 10\], got \(10,\)"),
        ("wan", {"latent_BFHWC": (0, 3, 4, 6, 16)}, "expected 1 sample or more, got"),
        ("wan-image", {"latent_BFHWC": (2, 3, 4, 6, 16)}, "of 36 channels, got 16"),
        ("mmdit", {"latent_BFHWC": (2, 3, 5, 6, 16)}, "MMDiT: latent height is 5"),
        ("mmdit", {"text_lengths": (3,)}, r"text_lengths of shape \(2,\), got"),
        ("mmdit", {"pooled": (2, 9)}, r"pooled of shape \(2, 8\), got \(2, 9\)"),
        ("mmdit", {"pooled": None}, "pooled text of width 8, got none; the mean of"),
        (
            "mmdit",
            {"guidance": None},
            "guidance, as guidance=True, got none",
        ),
        ("mmdit", {"guidance": (3,)}, r"guidance of shape \(2,\), got \(3,\)"),
    ],
)
def test_inputs_of_the_wrong_shape(kind: str, given: dict[str, Any], message: str):
    config = CONFIGS[kind]
    arrays = {
        name: None if shape is None else jnp.zeros(shape)
        for name, shape in given.items()
    }
    if "text_lengths" in arrays:
        arrays["text_lengths"] = jnp.zeros(3, jnp.int32)
    with pytest.raises(InputError, match=message):
        call_unchecked(config, inputs(config) | arrays)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("lora_targets", "q", "lora_targets='q': expected a tuple of some of"),
        ("lora_targets", ["q"], r"lora_targets=\['q'\]: expected a tuple of some of"),
        ("width", 32.0, "width=32.0: expected 1 or more, a whole number"),
        ("width", "32", "width='32': expected 1 or more, a whole number"),
    ],
)
def test_values_of_another_type(field: str, value: Any, message: str):
    config = dataclasses.replace(preset("wan-tiny"))
    # Without the type checks, which only tests have and which would raise first.
    object.__setattr__(config, field, value)
    with pytest.raises(InputError, match=message):
        config.__post_init__()


def test_lengths_that_are_no_integers():
    config = CONFIGS["mmdit"]
    given = inputs(config) | {"text_lengths": jnp.ones(2)}
    with pytest.raises(InputError, match="text_lengths of integers, got float32"):
        call_unchecked(config, given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens_BSP": (2, 18, 60)}, r"patches of shape \[batch, tokens, 64\], got"),
        ({"tokens_BSP": (2, 17, 64)}, r"18 tokens of the grid \(3, 2, 3\), got 17"),
        ({"grid": (3, 3)}, r"grid of shape \(2, 3\), got \(3, 3\)"),
    ],
)
def test_tokens_of_the_wrong_shape(given: dict[str, Any], message: str):
    config = CONFIGS["wan"]
    model = nnx.eval_shape(lambda: make(config))
    arrays: dict[str, Any] = dict(inputs(config))
    arrays["tokens_BSP"] = to_patches(arrays.pop("latent_BFHWC"), config.patch)
    arrays["grid"] = (3, 2, 3)
    arrays |= {name: jnp.zeros(shape, jnp.int32) for name, shape in given.items()}
    with pytest.raises(InputError, match=message):
        inspect.unwrap(type(model).velocity)(model, **arrays)


@pytest.mark.parametrize("model", [WanTransformer, MMDiT])
def test_the_config_of_another_model(model: Any):
    kind = "mmdit" if model is WanTransformer else "wan"
    message = rf"{model.__name__}: expected a \w+Config, got a \w+Config"
    with pytest.raises(InputError, match=message):
        inspect.unwrap(model.__init__)(
            object.__new__(model), CONFIGS[kind], rngs=nnx.Rngs(0)
        )


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("wan-tiny", "depth", 0, "model.depth=0: expected 1 or more"),
        ("wan-tiny", "num_heads", 3, "num_heads=3 with width=32: .* heads is 2"),
        ("wan-tiny", "num_heads", 16, "num_heads=16 .* of 6 or more; .* heads is 4"),
        ("wan-tiny", "width", 31, "num_heads=2 with width=31: .* even width"),
        ("wan2.1-t2v-1.3b", "num_heads", 7, "num_heads=7 with width=1536: .* is 6"),
        ("wan-tiny", "num_text_tokens", -1, "num_text_tokens=-1: expected 1 or more"),
        ("wan-tiny", "channels", 0, "model.channels=0: expected 1 or more"),
        ("wan-tiny", "condition_channels", -1, "condition_channels=-1: expected 0 or"),
        ("wan-tiny", "num_image_positions", 4, "expected 0 without image_dim; set"),
        ("wan-tiny", "lora_rank", -1, "model.lora_rank=-1: expected 0 or more"),
        ("wan-tiny", "lora_alpha", 0.0, "model.lora_alpha=0.0: expected more than 0"),
        ("wan-tiny", "lora_alpha", math.nan, "lora_alpha=nan: expected more than 0"),
        (
            "wan-tiny",
            "lora_targets",
            ("q", "mlp"),
            "lora_targets=q,mlp: .* q, k, v",
        ),
        ("wan-tiny", "lora_targets", (), "lora_targets=: expected a tuple of some of"),
        ("mmdit-tiny", "num_single_blocks", 0, "num_single_blocks=0: expected 1 or"),
        ("mmdit-tiny", "pooled_dim", 0, "model.pooled_dim=0: expected 1 or more"),
        ("mmdit-tiny", "rope_widths", (4, 6, 8), "rope_widths=4,6,8: .* a head, 16"),
        ("mmdit-tiny", "rope_widths", (5, 5, 6), "three even numbers"),
        ("mmdit-tiny", "rope_theta", 1.0, "model.rope_theta=1.0: expected more than 1"),
        ("mmdit-tiny", "rope_theta", math.nan, "rope_theta=nan: expected more than 1"),
    ],
)
def test_invalid_sizes(name: str, field: str, value: Any, message: str):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(preset(name), **{field: value})


def test_an_unknown_preset_is_told_the_nearest():
    with pytest.raises(InputError, match=r"'wan2.1-1.3b': .* mean 'wan2.1-t2v-1.3b'\?"):
        preset("wan2.1-1.3b")
    with pytest.raises(InputError, match=re.escape(", ".join(all_presets()))):
        preset("zzz")
