"""Configs of released MMDiTs, and of small ones for experiments and tests."""

import dataclasses
from collections.abc import Mapping

from jaxload.models.mmdit.config import MMDiTConfig

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

PRESETS: Mapping[str, MMDiTConfig] = {
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
