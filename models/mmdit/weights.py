"""Tensor names and config.json of HunyuanVideo."""

import math
import re

from jaxload.models.mmdit.config import MMDiTConfig
from jaxload.models.weights.configs import (
    CLASS_NAME,
    MAX_HEADS,
    MAX_LAYERS,
    NUM_TEXT_TOKENS,
    Fields,
)
from jaxload.models.weights.names import (
    HALVES_SWAPPED,
    HALVES_SWAPPED_BIAS,
    TRANSPOSED,
    UNCHANGED,
    Entry,
    WeightNames,
    channels_first,
    linear,
    norm,
    patch_convolution,
    scale,
)

_NUM_TEXT_TOKENS = 256
_NAME = "HunyuanVideoTransformer3DModel"
_CONTEXT = "context_embedder"
_CONDITION = "time_text_embed"

_PATCH_FRAMES, _PATCH_SIZE, _ = MMDiTConfig.patch

_FIXED = {
    "patch_size": _PATCH_SIZE,
    "patch_size_t": _PATCH_FRAMES,
    "qk_norm": "rms_norm",
    "image_condition_type": None,
}
"""Fields of config.json that are the same for all supported models."""

_DEFAULTS = {
    **_FIXED,
    NUM_TEXT_TOKENS: _NUM_TEXT_TOKENS,
    "in_channels": 16,
    "out_channels": 16,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "num_layers": 20,
    "num_single_layers": 40,
    "num_refiner_layers": 2,
    "mlp_ratio": 4.0,
    "guidance_embeds": True,
    "text_embed_dim": 4096,
    "pooled_projection_dim": 768,
    "rope_theta": 256.0,
    "rope_axes_dim": [16, 56, 56],
}


def _refiner_block() -> list[Entry]:
    path = "refiner.blocks"
    diffusers = f"{_CONTEXT}.token_refiner.refiner_blocks.{{i}}"
    original = "txt_in.individual_token_refiner.blocks.{i}"
    qkv = f"{original}.self_attn_qkv"
    attention = f"{path}.attention"
    return [
        *norm(f"{path}.norm1", f"{diffusers}.norm1", f"{original}.norm1"),
        *linear(f"{attention}.q", f"{diffusers}.attn.to_q", qkv),
        *linear(f"{attention}.k", f"{diffusers}.attn.to_k", qkv),
        *linear(f"{attention}.v", f"{diffusers}.attn.to_v", qkv),
        *linear(
            f"{attention}.out",
            f"{diffusers}.attn.to_out.0",
            f"{original}.self_attn_proj",
        ),
        *norm(f"{path}.norm2", f"{diffusers}.norm2", f"{original}.norm2"),
        *linear(f"{path}.mlp_in", f"{diffusers}.ff.net.0.proj", f"{original}.mlp.fc1"),
        *linear(f"{path}.mlp_out", f"{diffusers}.ff.net.2", f"{original}.mlp.fc2"),
        *linear(
            f"{path}.gates",
            f"{diffusers}.norm_out.linear",
            f"{original}.adaLN_modulation.1",
        ),
    ]


def _stream(path: str, original: str, names: dict[str, str]) -> list[Entry]:
    """Returns the entries of one stream; `names` maps our names to diffusers'."""
    path = f"double_blocks.{path}"
    original = f"double_blocks.{{i}}.{original}"
    diffusers = {key: f"transformer_blocks.{{i}}.{name}" for key, name in names.items()}
    q_norm, k_norm = (f"{original}_attn_{x}_norm" for x in "qk")
    qkv = f"{original}_attn_qkv"
    return [
        *linear(
            f"{path}.modulation", diffusers["modulation"], f"{original}_mod.linear"
        ),
        *linear(f"{path}.q", diffusers["q"], qkv),
        *linear(f"{path}.k", diffusers["k"], qkv),
        *linear(f"{path}.v", diffusers["v"], qkv),
        scale(f"{path}.q_norm", diffusers["q_norm"], q_norm),
        scale(f"{path}.k_norm", diffusers["k_norm"], k_norm),
        *linear(f"{path}.out", diffusers["out"], f"{original}_attn_proj"),
        *linear(f"{path}.mlp_in", diffusers["mlp_in"], f"{original}_mlp.fc1"),
        *linear(f"{path}.mlp_out", diffusers["mlp_out"], f"{original}_mlp.fc2"),
    ]


_VIDEO = {
    "modulation": "norm1.linear",
    "q": "attn.to_q",
    "k": "attn.to_k",
    "v": "attn.to_v",
    "q_norm": "attn.norm_q",
    "k_norm": "attn.norm_k",
    "out": "attn.to_out.0",
    "mlp_in": "ff.net.0.proj",
    "mlp_out": "ff.net.2",
}
_TEXT = {
    "modulation": "norm1_context.linear",
    "q": "attn.add_q_proj",
    "k": "attn.add_k_proj",
    "v": "attn.add_v_proj",
    "q_norm": "attn.norm_added_q",
    "k_norm": "attn.norm_added_k",
    "out": "attn.to_add_out",
    "mlp_in": "ff_context.net.0.proj",
    "mlp_out": "ff_context.net.2",
}


def _single_block() -> list[Entry]:
    path, diffusers = "single_blocks", "single_transformer_blocks.{i}"
    original = "single_blocks.{i}"
    # The rows of linear1 are q, k, v and mlp_in, in this order.
    linear1 = f"{original}.linear1"
    return [
        *linear(
            f"{path}.modulation",
            f"{diffusers}.norm.linear",
            f"{original}.modulation.linear",
        ),
        *linear(f"{path}.q", f"{diffusers}.attn.to_q", linear1),
        *linear(f"{path}.k", f"{diffusers}.attn.to_k", linear1),
        *linear(f"{path}.v", f"{diffusers}.attn.to_v", linear1),
        *linear(f"{path}.mlp_in", f"{diffusers}.proj_mlp", linear1),
        scale(f"{path}.q_norm", f"{diffusers}.attn.norm_q", f"{original}.q_norm"),
        scale(f"{path}.k_norm", f"{diffusers}.attn.norm_k", f"{original}.k_norm"),
        *linear(f"{path}.out", f"{diffusers}.proj_out", f"{original}.linear2"),
    ]


def _two_layers(path: str, diffusers: str, original: str, a: str, b: str):
    return [
        *linear(f"{path}_in", f"{diffusers}.linear_1", f"{original}.{a}"),
        *linear(f"{path}_out", f"{diffusers}.linear_2", f"{original}.{b}"),
    ]


_ENTRIES = (
    *linear(
        "patch_in",
        "x_embedder.proj",
        "img_in.proj",
        (patch_convolution(MMDiTConfig.patch), UNCHANGED),
    ),
    *_two_layers(
        "refiner.time",
        f"{_CONTEXT}.time_text_embed.timestep_embedder",
        "txt_in.t_embedder",
        "mlp.0",
        "mlp.2",
    ),
    *_two_layers(
        "refiner.pooled",
        f"{_CONTEXT}.time_text_embed.text_embedder",
        "txt_in.c_embedder",
        "linear_1",
        "linear_2",
    ),
    *linear("refiner.text_in", f"{_CONTEXT}.proj_in", "txt_in.input_embedder"),
    *_refiner_block(),
    *_two_layers(
        "time", f"{_CONDITION}.timestep_embedder", "time_in", "mlp.0", "mlp.2"
    ),
    *_two_layers(
        "pooled", f"{_CONDITION}.text_embedder", "vector_in", "in_layer", "out_layer"
    ),
    *_two_layers(
        "guidance", f"{_CONDITION}.guidance_embedder", "guidance_in", "mlp.0", "mlp.2"
    ),
    *_stream("video", "img", _VIDEO),
    *_stream("text", "txt", _TEXT),
    *_single_block(),
    # The order is scale, shift here and in diffusers; shift, scale in the original.
    *linear(
        "head_modulation",
        "norm_out.linear",
        "final_layer.adaLN_modulation.1",
        (TRANSPOSED, UNCHANGED),
        (HALVES_SWAPPED, HALVES_SWAPPED_BIAS),
    ),
    *linear(
        "patch_out",
        "proj_out",
        "final_layer.linear",
        channels_first(MMDiTConfig.patch),
    ),
)


# ComfyUI uses the names of its FLUX implementation.
_COMFYUI = (
    ("t_embedder.mlp.0.", "t_embedder.in_layer."),
    ("t_embedder.mlp.2.", "t_embedder.out_layer."),
    ("c_embedder.linear_1.", "c_embedder.in_layer."),
    ("c_embedder.linear_2.", "c_embedder.out_layer."),
    ("_in.mlp.0.", "_in.in_layer."),
    ("_in.mlp.2.", "_in.out_layer."),
    ("mod.linear.", "mod.lin."),
    ("modulation.linear.", "modulation.lin."),
    ("mlp.fc1.", "mlp.0."),
    ("mlp.fc2.", "mlp.2."),
    ("_attn_qkv.", "_attn.qkv."),
    ("_attn_proj.", "_attn.proj."),
    ("_attn_q_norm.weight", "_attn.norm.query_norm.scale"),
    ("_attn_k_norm.weight", "_attn.norm.key_norm.scale"),
    (".q_norm.weight", ".norm.query_norm.scale"),
    (".k_norm.weight", ".norm.key_norm.scale"),
)


def _read_config(fields: Fields) -> MMDiTConfig:
    fields.set_defaults(_DEFAULTS)
    for name, value in _FIXED.items():
        fields.require(name, value)
    num_heads = fields.count("num_attention_heads", MAX_HEADS)
    head_width = fields.count("attention_head_dim", MAX_HEADS)
    channels = fields.count("in_channels")
    fields.require("out_channels", channels, None)
    fields.require("guidance_embeds", True, False)
    rope_widths = fields.get("rope_axes_dim")
    if not isinstance(rope_widths, list) or [type(w) for w in rope_widths] != 3 * [int]:
        raise fields.error("rope_axes_dim", "three widths, whole numbers")
    config = MMDiTConfig(
        width=num_heads * head_width,
        num_double_blocks=fields.count("num_layers", MAX_LAYERS),
        num_single_blocks=fields.count("num_single_layers", MAX_LAYERS),
        num_refiner_blocks=fields.count("num_refiner_layers", MAX_LAYERS),
        num_heads=num_heads,
        mlp_width=int(num_heads * head_width * fields.number("mlp_ratio")),
        text_dim=fields.count("text_embed_dim"),
        num_text_tokens=fields.count(NUM_TEXT_TOKENS),
        pooled_dim=fields.count("pooled_projection_dim"),
        channels=channels,
        guidance=fields.get("guidance_embeds"),
        rope_theta=fields.number("rope_theta"),
        rope_widths=tuple(rope_widths),
    )
    fields.end()
    return config


def _write_config(config: MMDiTConfig) -> dict[str, object]:
    ratio = config.mlp_width / config.width
    if int(config.width * ratio) < config.mlp_width:  # The ratio was rounded down.
        ratio = math.nextafter(ratio, math.inf)
    return {
        CLASS_NAME: _NAME,
        NUM_TEXT_TOKENS: config.num_text_tokens,
        **_FIXED,
        "in_channels": config.channels,
        "out_channels": config.channels,
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.head_width,
        "num_layers": config.num_double_blocks,
        "num_single_layers": config.num_single_blocks,
        "num_refiner_layers": config.num_refiner_blocks,
        "mlp_ratio": ratio,
        "guidance_embeds": config.guidance,
        "text_embed_dim": config.text_dim,
        "pooled_projection_dim": config.pooled_dim,
        "rope_theta": config.rope_theta,
        "rope_axes_dim": list(config.rope_widths),
    }


MMDIT = WeightNames(
    title="HunyuanVideo",
    entries=_ENTRIES,
    comfyui=_COMFYUI,
    ignored=re.compile(r"(.*\.)?freqs\w*"),  # Rotary tables are computed here.
    read_config={_NAME: _read_config},
    write_config=_write_config,
)
