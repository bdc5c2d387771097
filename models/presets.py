"""Model configs by name."""

import dataclasses
import difflib
from collections.abc import Mapping

from jaxload.errors import InputError
from jaxload.models.mmdit_config import MMDiTConfig
from jaxload.models.wan_config import WanConfig

ModelConfig = WanConfig | MMDiTConfig

_WAN_1_3B = WanConfig(
    width=1536,
    depth=30,
    num_heads=12,
    mlp_width=8960,
    text_dim=4096,
    num_text_tokens=512,
    remat="attention",
)
_WAN_14B = dataclasses.replace(
    _WAN_1_3B, width=5120, depth=40, num_heads=40, mlp_width=13_824
)
# The condition is a mask of 4 channels and the first frame's latent of 16.
_WAN_I2V_14B = dataclasses.replace(_WAN_14B, condition_channels=20, image_dim=1280)

_HUNYUAN_VIDEO = MMDiTConfig(
    width=3072,
    num_double_blocks=20,
    num_single_blocks=40,
    num_heads=24,
    mlp_width=12_288,
    text_dim=4096,
    num_text_tokens=256,
    pooled_dim=768,
    guidance=True,
    remat="attention",
)

PRESETS: Mapping[str, ModelConfig] = {
    "wan-tiny": WanConfig(
        width=32,
        depth=2,
        num_heads=2,
        mlp_width=64,
        text_dim=16,
        num_text_tokens=12,
        compute_dtype="float32",
    ),
    "wan-demo": WanConfig(
        width=128,
        depth=4,
        num_heads=4,
        mlp_width=512,
        text_dim=64,
        num_text_tokens=12,
        compute_dtype="float32",
    ),
    "wan2.1-t2v-1.3b": _WAN_1_3B,
    "wan2.1-t2v-14b": _WAN_14B,
    "wan2.1-i2v-14b": _WAN_I2V_14B,
    "wan2.1-flf2v-14b": dataclasses.replace(_WAN_I2V_14B, num_image_positions=514),
    "mmdit-tiny": MMDiTConfig(
        width=32,
        num_double_blocks=1,
        num_single_blocks=1,
        num_refiner_blocks=1,
        num_heads=2,
        mlp_width=64,
        text_dim=16,
        num_text_tokens=12,
        pooled_dim=16,
        rope_widths=(4, 6, 6),
        compute_dtype="float32",
    ),
    "mmdit-1b": dataclasses.replace(
        _HUNYUAN_VIDEO,
        width=1280,
        num_double_blocks=8,
        num_single_blocks=16,
        num_heads=10,
        mlp_width=5120,
        guidance=False,
    ),
    "hunyuan-video-13b": _HUNYUAN_VIDEO,
}
"""Configs of released models, and of small ones for experiments and tests."""


def preset(name: str) -> ModelConfig:
    """Returns the config of a named model.

    Raises:
        InputError: The name is unknown; the message suggests the closest one.
    """
    if name not in PRESETS:
        (close,) = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.0)
        raise InputError(
            f"model {name!r}: expected one of {', '.join(PRESETS)}; did you mean "
            f"{close!r}?"
        )
    return PRESETS[name]
