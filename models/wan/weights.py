"""Tensor names and config.json of Wan 2.1."""

import re

from jaxload.models.wan.config import WanConfig
from jaxload.models.weights.configs import (
    CLASS_NAME,
    MAX_HEADS,
    MAX_LAYERS,
    NUM_TEXT_TOKENS,
    Fields,
)
from jaxload.models.weights.names import (
    LEADING_ONE,
    UNCHANGED,
    Entry,
    WeightNames,
    linear,
    norm,
    patch_convolution,
    scale,
    vector,
)

_NUM_TEXT_TOKENS = 512
_NAME = "WanTransformer3DModel"
_ORIGINAL_NAME = "WanModel"
_EMBEDDER = "condition_embedder"
_IMAGE = f"{_EMBEDDER}.image_embedder"

_FIXED = {
    "patch_size": list(WanConfig.patch),
    "freq_dim": 256,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
}
"""Fields of config.json that are the same for all supported models."""

_IMAGE_SIZES = {"t2v": (0, 0), "i2v": (1280, 0), "flf2v": (1280, 514)}
"""image_dim and num_image_positions, by the original's model_type."""

_DEFAULTS = {
    **_FIXED,
    NUM_TEXT_TOKENS: _NUM_TEXT_TOKENS,
    "num_attention_heads": 40,
    "attention_head_dim": 128,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 4096,
    "ffn_dim": 13_824,
    "num_layers": 40,
}


def _attention(path: str, diffusers: str, original: str) -> list[Entry]:
    path, diffusers, original = (
        f"blocks.{path}",
        f"blocks.{{i}}.{diffusers}",
        f"blocks.{{i}}.{original}",
    )
    return [
        *linear(f"{path}.q", f"{diffusers}.to_q", f"{original}.q"),
        *linear(f"{path}.k", f"{diffusers}.to_k", f"{original}.k"),
        *linear(f"{path}.v", f"{diffusers}.to_v", f"{original}.v"),
        *linear(f"{path}.out", f"{diffusers}.to_out.0", f"{original}.o"),
        scale(f"{path}.q_norm", f"{diffusers}.norm_q", f"{original}.norm_q"),
        scale(f"{path}.k_norm", f"{diffusers}.norm_k", f"{original}.norm_k"),
        *linear(f"{path}.image_k", f"{diffusers}.add_k_proj", f"{original}.k_img"),
        *linear(f"{path}.image_v", f"{diffusers}.add_v_proj", f"{original}.v_img"),
        scale(
            f"{path}.image_k_norm",
            f"{diffusers}.norm_added_k",
            f"{original}.norm_k_img",
        ),
    ]


_ENTRIES = (
    *linear(
        "patch_in",
        "patch_embedding",
        "patch_embedding",
        (patch_convolution(WanConfig.patch), UNCHANGED),
    ),
    *linear("time_in", f"{_EMBEDDER}.time_embedder.linear_1", "time_embedding.0"),
    *linear("time_out", f"{_EMBEDDER}.time_embedder.linear_2", "time_embedding.2"),
    *linear("time_projection", f"{_EMBEDDER}.time_proj", "time_projection.1"),
    *linear("text_in", f"{_EMBEDDER}.text_embedder.linear_1", "text_embedding.0"),
    *linear("text_out", f"{_EMBEDDER}.text_embedder.linear_2", "text_embedding.2"),
    *norm("image.norm_in", f"{_IMAGE}.norm1", "img_emb.proj.0"),
    *linear("image.mlp_in", f"{_IMAGE}.ff.net.0.proj", "img_emb.proj.1"),
    *linear("image.mlp_out", f"{_IMAGE}.ff.net.2", "img_emb.proj.3"),
    *norm("image.norm_out", f"{_IMAGE}.norm2", "img_emb.proj.4"),
    vector("image.positions", f"{_IMAGE}.pos_embed", "img_emb.emb_pos", LEADING_ONE),
    vector("head_modulation", "scale_shift_table", "head.modulation", LEADING_ONE),
    *linear("patch_out", "proj_out", "head.head"),
    vector(
        "blocks.modulation",
        "blocks.{i}.scale_shift_table",
        "blocks.{i}.modulation",
        LEADING_ONE,
    ),
    *_attention("self_attention", "attn1", "self_attn"),
    *_attention("cross_attention", "attn2", "cross_attn"),
    # The norm before cross-attention is norm2 in diffusers, norm3 in the original.
    *norm("blocks.cross_norm", "blocks.{i}.norm2", "blocks.{i}.norm3"),
    *linear("blocks.mlp_in", "blocks.{i}.ffn.net.0.proj", "blocks.{i}.ffn.0"),
    *linear("blocks.mlp_out", "blocks.{i}.ffn.net.2", "blocks.{i}.ffn.2"),
)


def _read_config(fields: Fields) -> WanConfig:
    fields.set_defaults(_DEFAULTS)
    for name, value in _FIXED.items():
        fields.require(name, value)
    num_heads = fields.count("num_attention_heads", MAX_HEADS)
    width = num_heads * fields.count("attention_head_dim", MAX_HEADS)
    in_channels = fields.count("in_channels")
    channels = fields.optional_count("out_channels") or in_channels
    if channels > in_channels:
        raise fields.error("out_channels", f"in_channels={in_channels} or fewer")
    image_dim = fields.optional_count("image_dim")
    fields.require("added_kv_proj_dim", width if image_dim else None)
    fields.get("rope_max_seq_len")  # Ignored: our rotary tables have no maximum length.
    config = WanConfig(
        width=width,
        depth=fields.count("num_layers", MAX_LAYERS),
        num_heads=num_heads,
        mlp_width=fields.count("ffn_dim"),
        text_dim=fields.count("text_dim"),
        num_text_tokens=fields.count(NUM_TEXT_TOKENS),
        channels=channels,
        condition_channels=in_channels - channels,
        image_dim=image_dim,
        num_image_positions=fields.optional_count("pos_embed_seq_len"),
    )
    fields.end()
    return config


def _read_original_config(fields: Fields) -> WanConfig:
    """Builds a config from the fields of a config.json of Wan's original release."""
    fields.set_defaults({"text_dim": 4096, "text_len": _NUM_TEXT_TOKENS})
    fields.require("freq_dim", _FIXED["freq_dim"])
    fields.require("eps", _FIXED["eps"])
    fields.require("model_type", *_IMAGE_SIZES)
    image_dim, num_image_positions = _IMAGE_SIZES[fields.get("model_type")]
    channels = fields.count("out_dim")
    config = WanConfig(
        width=fields.count("dim"),
        depth=fields.count("num_layers", MAX_LAYERS),
        num_heads=fields.count("num_heads"),
        mlp_width=fields.count("ffn_dim"),
        text_dim=fields.count("text_dim"),
        num_text_tokens=fields.count("text_len"),
        channels=channels,
        condition_channels=fields.count("in_dim") - channels,
        image_dim=image_dim,
        num_image_positions=num_image_positions,
    )
    fields.end()
    return config


def _write_config(config: WanConfig) -> dict[str, object]:
    return {
        CLASS_NAME: _NAME,
        NUM_TEXT_TOKENS: config.num_text_tokens,
        **_FIXED,
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.head_width,
        "in_channels": config.in_channels,
        "out_channels": config.channels,
        "text_dim": config.text_dim,
        "ffn_dim": config.mlp_width,
        "num_layers": config.depth,
        "image_dim": config.image_dim or None,
        "added_kv_proj_dim": config.width if config.image_dim else None,
        "rope_max_seq_len": 1024,
        "pos_embed_seq_len": config.num_image_positions or None,
    }


WAN = WeightNames(
    title="Wan 2.1",
    entries=_ENTRIES,
    comfyui=(),
    # Text and image share queries, so norm_added_q is unused; freqs are computed here.
    ignored=re.compile(r".*\.norm_added_q\.\w+|(.*\.)?freqs\w*"),
    read_config={_NAME: _read_config, _ORIGINAL_NAME: _read_original_config},
    write_config=_write_config,
)
