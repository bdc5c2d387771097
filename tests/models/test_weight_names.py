"""Tests of jaxload.models.weights.names and of the name tables."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from jaxload.models import MMDiTConfig, ModelConfig, WanConfig, make_model, preset
from jaxload.models.weights import names
from jaxload.models.weights.families import weights_of
from jaxload.models.weights.names import Conversion, Naming, Shape, Tensor, tensors_of
from jaxload.models.weights.variables import is_stored, variables_of

WAN = WanConfig(
    width=48,
    depth=1,
    num_heads=4,
    mlp_width=96,
    text_dim=32,
    num_text_tokens=8,
    condition_channels=20,
    image_dim=24,
    num_image_positions=6,
)
MMDIT = MMDiTConfig(
    width=64,
    num_double_blocks=1,
    num_single_blocks=1,
    num_refiner_blocks=1,
    num_heads=4,
    mlp_width=160,
    text_dim=24,
    num_text_tokens=8,
    pooled_dim=20,
    guidance=True,
    rope_widths=(4, 6, 6),
)

# Tensors of the models above: diffusers' names, as diffusers 0.42 writes them, and the
# original names that it reads. A + means a bias beside a weight.
WAN_DIFFUSERS = """
blocks.0.attn1.norm_k.weight 48
blocks.0.attn1.norm_q.weight 48
blocks.0.attn1.to_k + 48x48
blocks.0.attn1.to_out.0 + 48x48
blocks.0.attn1.to_q + 48x48
blocks.0.attn1.to_v + 48x48
blocks.0.attn2.add_k_proj + 48x48
blocks.0.attn2.add_v_proj + 48x48
blocks.0.attn2.norm_added_k.weight 48
blocks.0.attn2.norm_k.weight 48
blocks.0.attn2.norm_q.weight 48
blocks.0.attn2.to_k + 48x48
blocks.0.attn2.to_out.0 + 48x48
blocks.0.attn2.to_q + 48x48
blocks.0.attn2.to_v + 48x48
blocks.0.ffn.net.0.proj + 96x48
blocks.0.ffn.net.2 + 48x96
blocks.0.norm2 + 48
blocks.0.scale_shift_table 1x6x48
condition_embedder.image_embedder.ff.net.0.proj + 24x24
condition_embedder.image_embedder.ff.net.2 + 48x24
condition_embedder.image_embedder.norm1 + 24
condition_embedder.image_embedder.norm2 + 48
condition_embedder.image_embedder.pos_embed 1x6x24
condition_embedder.text_embedder.linear_1 + 48x32
condition_embedder.text_embedder.linear_2 + 48x48
condition_embedder.time_embedder.linear_1 + 48x256
condition_embedder.time_embedder.linear_2 + 48x48
condition_embedder.time_proj + 288x48
patch_embedding + 48x36x1x2x2
proj_out + 64x48
scale_shift_table 1x2x48
"""
WAN_ORIGINAL = """
blocks.0.cross_attn.k + 48x48
blocks.0.cross_attn.k_img + 48x48
blocks.0.cross_attn.norm_k.weight 48
blocks.0.cross_attn.norm_k_img.weight 48
blocks.0.cross_attn.norm_q.weight 48
blocks.0.cross_attn.o + 48x48
blocks.0.cross_attn.q + 48x48
blocks.0.cross_attn.v + 48x48
blocks.0.cross_attn.v_img + 48x48
blocks.0.ffn.0 + 96x48
blocks.0.ffn.2 + 48x96
blocks.0.modulation 1x6x48
blocks.0.norm3 + 48
blocks.0.self_attn.k + 48x48
blocks.0.self_attn.norm_k.weight 48
blocks.0.self_attn.norm_q.weight 48
blocks.0.self_attn.o + 48x48
blocks.0.self_attn.q + 48x48
blocks.0.self_attn.v + 48x48
head.head + 64x48
head.modulation 1x2x48
img_emb.emb_pos 1x6x24
img_emb.proj.0 + 24
img_emb.proj.1 + 24x24
img_emb.proj.3 + 48x24
img_emb.proj.4 + 48
patch_embedding + 48x36x1x2x2
text_embedding.0 + 48x32
text_embedding.2 + 48x48
time_embedding.0 + 48x256
time_embedding.2 + 48x48
time_projection.1 + 288x48
"""
MMDIT_DIFFUSERS = """
context_embedder.proj_in + 64x24
context_embedder.time_text_embed.text_embedder.linear_1 + 64x24
context_embedder.time_text_embed.text_embedder.linear_2 + 64x64
context_embedder.time_text_embed.timestep_embedder.linear_1 + 64x256
context_embedder.time_text_embed.timestep_embedder.linear_2 + 64x64
context_embedder.token_refiner.refiner_blocks.0.attn.to_k + 64x64
context_embedder.token_refiner.refiner_blocks.0.attn.to_out.0 + 64x64
context_embedder.token_refiner.refiner_blocks.0.attn.to_q + 64x64
context_embedder.token_refiner.refiner_blocks.0.attn.to_v + 64x64
context_embedder.token_refiner.refiner_blocks.0.ff.net.0.proj + 256x64
context_embedder.token_refiner.refiner_blocks.0.ff.net.2 + 64x256
context_embedder.token_refiner.refiner_blocks.0.norm1 + 64
context_embedder.token_refiner.refiner_blocks.0.norm2 + 64
context_embedder.token_refiner.refiner_blocks.0.norm_out.linear + 128x64
norm_out.linear + 128x64
proj_out + 64x64
single_transformer_blocks.0.attn.norm_k.weight 16
single_transformer_blocks.0.attn.norm_q.weight 16
single_transformer_blocks.0.attn.to_k + 64x64
single_transformer_blocks.0.attn.to_q + 64x64
single_transformer_blocks.0.attn.to_v + 64x64
single_transformer_blocks.0.norm.linear + 192x64
single_transformer_blocks.0.proj_mlp + 160x64
single_transformer_blocks.0.proj_out + 64x224
time_text_embed.guidance_embedder.linear_1 + 64x256
time_text_embed.guidance_embedder.linear_2 + 64x64
time_text_embed.text_embedder.linear_1 + 64x20
time_text_embed.text_embedder.linear_2 + 64x64
time_text_embed.timestep_embedder.linear_1 + 64x256
time_text_embed.timestep_embedder.linear_2 + 64x64
transformer_blocks.0.attn.add_k_proj + 64x64
transformer_blocks.0.attn.add_q_proj + 64x64
transformer_blocks.0.attn.add_v_proj + 64x64
transformer_blocks.0.attn.norm_added_k.weight 16
transformer_blocks.0.attn.norm_added_q.weight 16
transformer_blocks.0.attn.norm_k.weight 16
transformer_blocks.0.attn.norm_q.weight 16
transformer_blocks.0.attn.to_add_out + 64x64
transformer_blocks.0.attn.to_k + 64x64
transformer_blocks.0.attn.to_out.0 + 64x64
transformer_blocks.0.attn.to_q + 64x64
transformer_blocks.0.attn.to_v + 64x64
transformer_blocks.0.ff.net.0.proj + 160x64
transformer_blocks.0.ff.net.2 + 64x160
transformer_blocks.0.ff_context.net.0.proj + 160x64
transformer_blocks.0.ff_context.net.2 + 64x160
transformer_blocks.0.norm1.linear + 384x64
transformer_blocks.0.norm1_context.linear + 384x64
x_embedder.proj + 64x16x1x2x2
"""
MMDIT_ORIGINAL = """
double_blocks.0.img_attn_k_norm.weight 16
double_blocks.0.img_attn_proj + 64x64
double_blocks.0.img_attn_q_norm.weight 16
double_blocks.0.img_attn_qkv + 192x64
double_blocks.0.img_mlp.fc1 + 160x64
double_blocks.0.img_mlp.fc2 + 64x160
double_blocks.0.img_mod.linear + 384x64
double_blocks.0.txt_attn_k_norm.weight 16
double_blocks.0.txt_attn_proj + 64x64
double_blocks.0.txt_attn_q_norm.weight 16
double_blocks.0.txt_attn_qkv + 192x64
double_blocks.0.txt_mlp.fc1 + 160x64
double_blocks.0.txt_mlp.fc2 + 64x160
double_blocks.0.txt_mod.linear + 384x64
final_layer.adaLN_modulation.1 + 128x64
final_layer.linear + 64x64
guidance_in.mlp.0 + 64x256
guidance_in.mlp.2 + 64x64
img_in.proj + 64x16x1x2x2
single_blocks.0.k_norm.weight 16
single_blocks.0.linear1 + 352x64
single_blocks.0.linear2 + 64x224
single_blocks.0.modulation.linear + 192x64
single_blocks.0.q_norm.weight 16
time_in.mlp.0 + 64x256
time_in.mlp.2 + 64x64
txt_in.c_embedder.linear_1 + 64x24
txt_in.c_embedder.linear_2 + 64x64
txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1 + 128x64
txt_in.individual_token_refiner.blocks.0.mlp.fc1 + 256x64
txt_in.individual_token_refiner.blocks.0.mlp.fc2 + 64x256
txt_in.individual_token_refiner.blocks.0.norm1 + 64
txt_in.individual_token_refiner.blocks.0.norm2 + 64
txt_in.individual_token_refiner.blocks.0.self_attn_proj + 64x64
txt_in.individual_token_refiner.blocks.0.self_attn_qkv + 192x64
txt_in.input_embedder + 64x24
txt_in.t_embedder.mlp.0 + 64x256
txt_in.t_embedder.mlp.2 + 64x64
vector_in.in_layer + 64x20
vector_in.out_layer + 64x64
"""
TABLES = [
    pytest.param(WAN, "diffusers", WAN_DIFFUSERS, id="wan-diffusers"),
    pytest.param(WAN, "original", WAN_ORIGINAL, id="wan-original"),
    pytest.param(MMDIT, "diffusers", MMDIT_DIFFUSERS, id="mmdit-diffusers"),
    pytest.param(MMDIT, "original", MMDIT_ORIGINAL, id="mmdit-original"),
]

PATCH_CONVOLUTION = names.patch_convolution((1, 2, 2))
CHANNELS_FIRST, CHANNELS_FIRST_BIAS = names.channels_first((1, 2, 2))

# Conversions, each with the shape of a parameter.
CONVERSIONS = [
    pytest.param(names.UNCHANGED, (5,), id="unchanged"),
    pytest.param(names.TRANSPOSED, (3, 5), id="transposed"),
    pytest.param(names.LEADING_ONE, (6, 5), id="leading-one"),
    pytest.param(PATCH_CONVOLUTION, (12, 5), id="patch-convolution"),
    pytest.param(
        names.patch_convolution((2, 3, 1)), (12, 5), id="patch-convolution-of-frames"
    ),
    pytest.param(CHANNELS_FIRST, (5, 12), id="channels-first"),
    pytest.param(CHANNELS_FIRST_BIAS, (12,), id="channels-first-bias"),
    pytest.param(names.HALVES_SWAPPED, (5, 6), id="halves-swapped"),
    pytest.param(names.HALVES_SWAPPED_BIAS, (6,), id="halves-swapped-bias"),
]


def expected_shapes(text: str) -> dict[str, Shape]:
    shapes = {}
    for line in text.split("\n")[1:-1]:
        name, *plus, sizes = line.split()
        shape = tuple(map(int, sizes.split("x")))
        shapes |= (
            {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
            if plus
            else {name: shape}
        )
    return shapes


def tensors(config: ModelConfig, naming: Naming) -> dict[str, Tensor]:
    model = nnx.eval_shape(lambda: make_model(config, rngs=nnx.Rngs(0)))
    variables = variables_of(nnx.state(model))
    shapes = {p: v.get_value().shape for p, v in variables.items() if is_stored(v)}
    return tensors_of(weights_of(config), naming, shapes)


@pytest.mark.parametrize(("config", "naming", "text"), TABLES)
def test_a_table_has_the_names_and_shapes_of_others(
    config: WanConfig | MMDiTConfig, naming: Naming, text: str
):
    found = {name: tensor.shape for name, tensor in tensors(config, naming).items()}
    assert found == expected_shapes(text)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("wan2.1-t2v-1.3b", 825),
        ("wan2.1-t2v-14b", 1095),
        ("wan2.1-flf2v-14b", 1304),
    ],
)
def test_a_released_model_has_as_many_tensors_as_its_files(name: str, count: int):
    assert len(tensors(preset(name), "diffusers")) == count
    assert len(tensors(preset(name), "original")) == count


def test_layers_are_counted_and_come_one_after_the_other():
    found = list(tensors(dataclasses.replace(WAN, depth=12), "comfyui"))
    prefix = "model.diffusion_model.blocks."
    layers = [int(name.split(".")[3]) for name in found if name.startswith(prefix)]
    assert layers == sorted(layers)
    assert set(layers) == set(range(12))
    assert all(name.startswith(names.PREFIX) for name in found)


@pytest.mark.parametrize(("conversion", "shape"), CONVERSIONS)
def test_a_conversion_is_undone_exactly(conversion: Conversion, shape: Shape):
    parameter = np.arange(np.prod(shape)).reshape(shape)
    tensor = conversion.to_file(parameter)
    assert tensor.shape == conversion.joined(shape)
    np.testing.assert_array_equal(conversion.to_parameter(tensor, shape), parameter)


def test_a_patch_of_a_convolution_has_its_channels_last():
    num_channels, width = 3, 5
    tensor = np.arange(width * num_channels * 4).reshape(width, num_channels, 1, 2, 2)
    kernel = PATCH_CONVOLUTION.to_parameter(tensor, (4 * num_channels, width))
    for row, column, channel in np.ndindex(2, 2, num_channels):
        index = (2 * row + column) * num_channels + channel
        np.testing.assert_array_equal(kernel[index], tensor[:, channel, 0, row, column])


def test_a_patch_with_channels_first_has_them_last():
    num_channels, width = 3, 5
    tensor = np.arange(4 * num_channels * width).reshape(4 * num_channels, width)
    kernel = CHANNELS_FIRST.to_parameter(tensor, (width, 4 * num_channels))
    bias = CHANNELS_FIRST_BIAS.to_parameter(tensor[:, 0], (4 * num_channels,))
    np.testing.assert_array_equal(bias, kernel[0])
    for pixel, channel in np.ndindex(4, num_channels):
        index = pixel * num_channels + channel
        np.testing.assert_array_equal(kernel[:, index], tensor[channel * 4 + pixel])


def test_swapped_halves_keep_their_order_within():
    tensor = np.arange(12).reshape(6, 2)
    kernel = names.HALVES_SWAPPED.to_parameter(tensor, (2, 6))
    np.testing.assert_array_equal(kernel, tensor[[3, 4, 5, 0, 1, 2]].T)
    bias = names.HALVES_SWAPPED_BIAS.to_parameter(tensor[:, 0], (6,))
    np.testing.assert_array_equal(bias, kernel[0])


def test_joined_projections_are_rows_in_the_order_of_the_original():
    linear1 = tensors(MMDIT, "original")["single_blocks.0.linear1.weight"]
    parts = [(p.path[1], p.first_row, p.num_rows) for p in linear1.parameters]
    assert parts == [
        ("q", 0, 64),
        ("k", 64, 64),
        ("v", 128, 64),
        ("mlp_in", 192, 160),
    ]


def test_only_what_differs_between_namings_has_another_conversion():
    entries = weights_of(MMDIT).entries
    others = [
        e.path for e in entries if e.diffusers.conversion != e.original.conversion
    ]
    assert others == [("head_modulation", "kernel"), ("head_modulation", "bias")]
