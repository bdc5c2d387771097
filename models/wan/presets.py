"""Configs of released Wan models, and of small ones for experiments and tests."""

import dataclasses
from collections.abc import Mapping

from jaxload.models.wan.config import WanConfig

_1_3B = WanConfig(
    width=1536,
    depth=30,
    num_heads=12,
    mlp_width=8960,
    text_dim=4096,
    num_text_tokens=512,
    remat="attention",
)
_14B = dataclasses.replace(_1_3B, width=5120, depth=40, num_heads=40, mlp_width=13_824)
# The condition is a mask of 4 channels and the first frame's latent of 16.
_I2V_14B = dataclasses.replace(_14B, condition_channels=20, image_dim=1280)

PRESETS: Mapping[str, WanConfig] = {
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
    "wan2.1-t2v-1.3b": _1_3B,
    "wan2.1-t2v-14b": _14B,
    "wan2.1-i2v-14b": _I2V_14B,
    "wan2.1-flf2v-14b": dataclasses.replace(_I2V_14B, num_image_positions=514),
}
