"""Tests of reading and writing config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxload.errors import InputError
from jaxload.models import WanConfig, weights
from jaxload.models.weights import files
from jaxload.models.weights.families import weights_of
from jaxload.models.weights.names import Naming
from tests.models.stored import (
    MMDIT,
    WAN,
    Config,
    assert_same,
    make,
    values,
)


@pytest.mark.parametrize("config", [WAN, MMDIT], ids=["wan", "mmdit"])
def test_the_config_is_read_and_written(config: Config, tmp_path: Path):
    weights.save(make(config), tmp_path)
    assert weights.read_config(tmp_path) == config
    found = weights.load(tmp_path)
    assert_same(values(found), values(make(config)))


@pytest.mark.parametrize("names", ["original", "comfyui"])
def test_without_a_config_it_must_be_given(names: Naming, tmp_path: Path):
    weights.save(make(WAN), tmp_path)
    # With a config.json beside these names, diffusers would find no weights.
    weights.save(make(WAN), tmp_path, names=names)
    message = r"config\.json: .* found none; pass the config to load\(\)"
    with pytest.raises(InputError, match=message):
        weights.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "field", "value", "message"),
    [
        (WAN, "patch_size", [1, 4, 4], r"patch_size: expected \[1, 2, 2\], got \[1, 4"),
        (WAN, "qk_norm", None, "qk_norm: expected 'rms_norm_across_heads', got None"),
        (WAN, "added_kv_proj_dim", None, "added_kv_proj_dim: expected 32, got None"),
        (WAN, "out_channels", 40, "out_channels: expected in_channels=36 or fewer"),
        (WAN, "num_layers", "3", "num_layers: expected a whole number .* got '3'"),
        (WAN, "vace_layers", [0, 5], r"vace_layers: expected no such field, got \[0"),
        (MMDIT, "qk_norm", "layer_norm", "qk_norm: expected 'rms_norm', got 'layer_n"),
        (
            MMDIT,
            "image_condition_type",
            "token_replace",
            "image_condition_type: expected null, got 'token_replace'; jaxload has no",
        ),
        (MMDIT, "rope_axes_dim", [16], "rope_axes_dim: expected three widths, whole"),
        (MMDIT, "rope_axes_dim", [4, 6.0, 6], "rope_axes_dim: expected three widths"),
        (MMDIT, "mlp_ratio", float("nan"), "mlp_ratio: expected a number above 0"),
        (MMDIT, "mlp_ratio", float("inf"), "mlp_ratio: expected a number above 0"),
        (MMDIT, "_class_name", "UNet", "expected WanTransformer3DModel or .* 'UNet'"),
        (MMDIT, "_class_name", [], r"expected WanTransformer3DModel or .* got \[\]"),
    ],
)
def test_a_config_that_no_model_here_has_is_refused(
    config: Config, field: str, value: Any, message: str, tmp_path: Path
):
    files.write(tmp_path / "diffusion_pytorch_model.safetensors", [], [])
    content = weights_of(config).write_config(config) | {field: value}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        weights.load(tmp_path)


def test_fields_that_say_nothing_are_allowed(tmp_path: Path):
    files.write(tmp_path / "diffusion_pytorch_model.safetensors", [], [])
    content = {
        "_class_name": "WanTransformer3DModel",
        "_diffusers_version": "0.34.0",
        "num_attention_heads": 12,
        "ffn_dim": 8960,
        "num_layers": 30,
        "new_option": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    config = weights.read_config(tmp_path)
    assert isinstance(config, WanConfig)
    assert (config.width, config.depth, config.text_dim) == (1536, 30, 4096)


def test_the_config_of_the_original_release_is_read(tmp_path: Path):
    files.write(tmp_path / "diffusion_pytorch_model.safetensors", [], [])
    content = {
        "_class_name": "WanModel",
        "_diffusers_version": "0.30.0",
        "dim": 5120,
        "eps": 1e-06,
        "ffn_dim": 13824,
        "freq_dim": 256,
        "in_dim": 36,
        "model_type": "i2v",
        "num_heads": 40,
        "num_layers": 40,
        "out_dim": 16,
        "text_len": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert weights.read_config(tmp_path) == WanConfig(
        width=5120,
        depth=40,
        num_heads=40,
        mlp_width=13_824,
        text_dim=4096,
        num_text_tokens=512,
        condition_channels=20,
        image_dim=1280,
    )
