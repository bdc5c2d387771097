"""Tests of jaxload.models.weights: loading files of other projects, and saving."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from jaxload.errors import InputError
from jaxload.models import weights
from jaxload.models.weights.names import PREFIXES, Naming
from tests.models.stored import (
    MMDIT,
    WAN,
    Config,
    assert_same,
    make,
    read,
    values,
    write,
)

CONFIGS = [pytest.param(WAN, id="wan"), pytest.param(MMDIT, id="mmdit")]


@pytest.fixture(scope="module", params=CONFIGS)
def config(request: pytest.FixtureRequest) -> Config:
    return request.param


@pytest.fixture(scope="module")
def wan_tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Returns a Wan model's tensors by diffusers' names."""
    directory = tmp_path_factory.mktemp("wan")
    weights.save(make(WAN), directory)
    return read(directory)


@pytest.mark.parametrize(
    ("names", "dtype", "max_file_bytes"),
    [
        ("diffusers", "float32", 100_000),
        ("diffusers", "bfloat16", 10_000_000),
        ("original", "float32", 100_000),
        ("original", "bfloat16", 10_000_000),
        ("comfyui", "bfloat16", 50_000),
    ],
)
def test_a_round_trip_changes_no_bit(
    config: Config, names: Naming, dtype: Any, max_file_bytes: int, tmp_path: Path
):
    config = dataclasses.replace(config, param_dtype=dtype)
    model = make(config)
    first, second = tmp_path / "first", tmp_path / "second"
    weights.save(model, first, names=names, max_file_bytes=max_file_bytes)
    found = weights.load(first, config)
    assert type(found) is type(model)
    assert_same(values(found), values(model))
    weights.save(found, second, names=names, max_file_bytes=max_file_bytes)
    assert_same(read(second), read(first))
    assert (len(list(first.glob("*.safetensors"))) > 1) == (max_file_bytes < 10_000_000)


def test_a_file_by_another_library_becomes_what_it_says(
    wan_tensors: dict[str, np.ndarray], tmp_path: Path
):
    found = values(weights.load(write(tmp_path / "x.safetensors", wan_tensors), WAN))
    for layer in range(WAN.depth):
        np.testing.assert_array_equal(
            found["blocks.self_attention.out.kernel"][layer],
            wan_tensors[f"blocks.{layer}.attn1.to_out.0.weight"].T,
        )
        np.testing.assert_array_equal(
            found["blocks.modulation"][layer],
            wan_tensors[f"blocks.{layer}.scale_shift_table"][0],
        )
    np.testing.assert_array_equal(found["patch_out.bias"], wan_tensors["proj_out.bias"])


def test_joined_projections_lie_behind_each_other(tmp_path: Path):
    model = make(MMDIT)
    weights.save(model, tmp_path, names="original")
    found, kernels = read(tmp_path), values(model)
    parts = [kernels[f"single_blocks.{n}.kernel"][2] for n in ("q", "k", "v", "mlp_in")]
    np.testing.assert_array_equal(
        found["single_blocks.2.linear1.weight"], np.concatenate(parts, axis=1).T
    )
    scale, shift = np.split(kernels["head_modulation.bias"], 2)
    np.testing.assert_array_equal(
        found["final_layer.adaLN_modulation.1.bias"], np.concatenate([shift, scale])
    )


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_and_what_is_computed_are_left_out(
    wan_tensors: dict[str, np.ndarray], prefix: str, tmp_path: Path
):
    extra = {
        "blocks.0.attn2.norm_added_q.weight": np.zeros(32, np.float32),
        "rope.freqs_cos": np.zeros(3, np.float32),
        "freqs": np.zeros(3, np.float32),
    }
    named = {prefix + name: array for name, array in (wan_tensors | extra).items()}
    path = write(tmp_path / "x.safetensors", named)
    assert_same(values(weights.load(path, WAN)), values(make(WAN)))


def test_a_tensor_that_is_there_with_a_prefix_and_without_is_told(
    wan_tensors: dict[str, np.ndarray], tmp_path: Path
):
    twice = wan_tensors | {
        "diffusion_model.proj_out.bias": wan_tensors["proj_out.bias"]
    }
    path = write(tmp_path / "x.safetensors", twice)
    with pytest.raises(InputError, match=r"1 present twice, .*: proj_out\.bias"):
        weights.load(path, WAN)


# ComfyUI's names of tensors that it saves for HunyuanVideo, by original name.
COMFYUI = {
    "time_in.mlp.0.weight": "time_in.in_layer.weight",
    "time_in.mlp.2.bias": "time_in.out_layer.bias",
    "guidance_in.mlp.0.weight": "guidance_in.in_layer.weight",
    "vector_in.in_layer.weight": "vector_in.in_layer.weight",
    "txt_in.t_embedder.mlp.2.weight": "txt_in.t_embedder.out_layer.weight",
    "txt_in.c_embedder.linear_1.weight": "txt_in.c_embedder.in_layer.weight",
    "txt_in.individual_token_refiner.blocks.0.self_attn_qkv.weight": (
        "txt_in.individual_token_refiner.blocks.0.self_attn.qkv.weight"
    ),
    "txt_in.individual_token_refiner.blocks.0.mlp.fc2.bias": (
        "txt_in.individual_token_refiner.blocks.0.mlp.2.bias"
    ),
    "txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.bias": (
        "txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.bias"
    ),
    "double_blocks.1.img_mod.linear.bias": "double_blocks.1.img_mod.lin.bias",
    "double_blocks.0.txt_attn_qkv.weight": "double_blocks.0.txt_attn.qkv.weight",
    "double_blocks.0.img_attn_q_norm.weight": (
        "double_blocks.0.img_attn.norm.query_norm.scale"
    ),
    "double_blocks.1.txt_attn_proj.weight": "double_blocks.1.txt_attn.proj.weight",
    "double_blocks.1.img_mlp.fc1.weight": "double_blocks.1.img_mlp.0.weight",
    "single_blocks.2.modulation.linear.weight": "single_blocks.2.modulation.lin.weight",
    "single_blocks.0.k_norm.weight": "single_blocks.0.norm.key_norm.scale",
    "single_blocks.0.linear1.weight": "single_blocks.0.linear1.weight",
}


def test_what_comfyui_saved_of_an_mmdit_is_read(tmp_path: Path):
    weights.save(make(MMDIT), tmp_path / "original", names="original")
    tensors = read(tmp_path / "original")
    assert tensors.keys() >= COMFYUI.keys()
    names = {name: comfyui_name(name) for name in tensors}
    assert {name: names[name] for name in COMFYUI} == COMFYUI
    renamed = {f"model.model.{names[name]}": x for name, x in tensors.items()}
    found = weights.load(write(tmp_path / "x.safetensors", renamed), MMDIT)
    assert_same(values(found), values(make(MMDIT)))


def comfyui_name(name: str) -> str:
    """Returns ComfyUI's name by regular expressions, independently of our table."""
    for pattern, other in (
        (r"(\w+_attn)_(qkv|proj)\.", r"\1.\2."),
        (r"(\w+_attn)_([qk])_norm\.weight", r"\1.norm.\2_norm.scale"),
        (r"(single_blocks\.\d+)\.([qk])_norm\.weight", r"\1.norm.\2_norm.scale"),
        (r"norm\.q_norm", "norm.query_norm"),
        (r"norm\.k_norm", "norm.key_norm"),
        (r"(_mod|\.modulation)\.linear\.", r"\1.lin."),
        (r"mlp\.fc1\.", "mlp.0."),
        (r"mlp\.fc2\.", "mlp.2."),
        (r"(time_in|guidance_in|t_embedder)\.mlp\.0\.", r"\1.in_layer."),
        (r"(time_in|guidance_in|t_embedder)\.mlp\.2\.", r"\1.out_layer."),
        (r"c_embedder\.linear_1\.", "c_embedder.in_layer."),
        (r"c_embedder\.linear_2\.", "c_embedder.out_layer."),
    ):
        name = re.sub(pattern, other, name)
    return name


def test_without_a_config_parameters_keep_the_type_of_the_files(tmp_path: Path):
    half = dataclasses.replace(WAN, param_dtype="bfloat16")
    for model, dtype in ((make(half), "bfloat16"), (make(WAN), "float32")):
        weights.save(model, tmp_path / dtype)
        found = weights.load(tmp_path / dtype)
        assert found.config.param_dtype == dtype
        assert_same(values(found), values(model))
    mixed = read(tmp_path / "bfloat16")
    mixed |= {"proj_out.bias": read(tmp_path / "float32")["proj_out.bias"]}
    write(tmp_path / "bfloat16" / "diffusion_pytorch_model.safetensors", mixed)
    assert weights.load(tmp_path / "bfloat16").config.param_dtype == "float32"


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path):
    config = tmp_path / "config.json"
    config.write_text('{"mine": 1}')
    for names in ("diffusers", "comfyui"):
        with pytest.raises(InputError, match=r"with a config\.json that is not a m"):
            weights.save(make(WAN), tmp_path, names=names)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert config.read_text() == '{"mine": 1}'


def test_what_diffusers_ignores_for_wan_is_part_of_an_mmdit(tmp_path: Path):
    weights.save(make(MMDIT), tmp_path)
    tensors = read(tmp_path)
    name = "transformer_blocks.1.attn.norm_added_q.weight"
    del tensors[name]
    path = write(tmp_path / "x.safetensors", tensors)
    with pytest.raises(InputError, match=f"1 missing: {name}$"):
        weights.load(path, MMDIT)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (np.float16, "float32"),
        (np.float16, "bfloat16"),
        (np.float32, "bfloat16"),
        (ml_dtypes.bfloat16, "float32"),
    ],
)
def test_parameters_get_the_type_of_the_config(
    wan_tensors: dict[str, np.ndarray], stored: Any, wanted: Any, tmp_path: Path
):
    tensors = {name: array.astype(stored) for name, array in wan_tensors.items()}
    path = write(tmp_path / "x.safetensors", tensors)
    config = dataclasses.replace(WAN, param_dtype=wanted)
    original, found = values(make(WAN)), values(weights.load(path, config))
    dtype = np.dtype(jnp.dtype(wanted))
    expected = {name: v.astype(stored).astype(dtype) for name, v in original.items()}
    assert_same(found, expected)


def test_other_types_are_refused_by_name(
    wan_tensors: dict[str, np.ndarray], tmp_path: Path
):
    eight_bits = wan_tensors["proj_out.bias"].astype(ml_dtypes.float8_e4m3fn)
    path = write(
        tmp_path / "x.safetensors", wan_tensors | {"proj_out.bias": eight_bits}
    )
    message = r"1 of a dtype other than F32, F16, BF16: proj_out\.bias \(F8_E4M3\)$"
    with pytest.raises(InputError, match=message):
        weights.load(path, WAN)


def test_all_that_differs_is_told_at_once(
    wan_tensors: dict[str, np.ndarray], tmp_path: Path
):
    tensors = dict(wan_tensors)
    del tensors["proj_out.bias"]
    for layer in range(2):
        del tensors[f"blocks.{layer}.attn1.to_q.weight"]
    tensors["patch_embedding.weight"] = np.zeros((32, 16, 1, 2, 2), np.float32)
    tensors |= {f"extra.{i:02}": np.zeros(1, np.float32) for i in range(12)}
    path = write(tmp_path / "x.safetensors", tensors)
    with pytest.raises(InputError) as error:
        weights.load(path, WAN)
    extras = ", ".join(f"extra.{i:02}" for i in range(10))
    assert str(error.value).split("\n") == [
        f"{path}: expected the tensors of this WanConfig, by the diffusers names of "
        "Wan 2.1, got others; give the config that the file was made with",
        "  3 missing: blocks.0.attn1.to_q.weight, blocks.1.attn1.to_q.weight, "
        "proj_out.bias",
        f"  12 unexpected: {extras} and 2 more",
        "  1 misshapen: patch_embedding.weight (expected [32, 36, 1, 2, 2], got "
        "[32, 16, 1, 2, 2])",
    ]


def test_a_joined_tensor_of_the_wrong_size_is_told(tmp_path: Path):
    weights.save(make(MMDIT), tmp_path, names="original")
    other = dataclasses.replace(MMDIT, mlp_width=64)
    message = r"linear1\.weight \(expected \[160, 32\], got \[176, 32\]\)"
    with pytest.raises(InputError, match=message):
        weights.load(tmp_path, other)


def test_a_file_of_something_else_is_told_from_a_model(tmp_path: Path):
    path = write(tmp_path / "x.safetensors", {"encoder.conv_in.weight": np.zeros(3)})
    message = (
        r"expected tensors of Wan 2\.1, got others: encoder\.conv_in\.weight; give "
        "a file of Wan 2.1 or HunyuanVideo"
    )
    with pytest.raises(InputError, match=message):
        weights.load(path, WAN)


def test_adapters_are_new_after_loading_and_merged_when_saved(tmp_path: Path):
    targets = ("q", "out", "mlp_in")
    config = dataclasses.replace(
        WAN, lora_rank=2, lora_alpha=3.0, lora_targets=targets, param_dtype="bfloat16"
    )
    base = make(dataclasses.replace(WAN, param_dtype="bfloat16"))
    weights.save(base, tmp_path / "base")
    model: Any = weights.load(tmp_path / "base", config)
    found, expected = values(model), values(base)
    adapters = {name for name in found if "lora" in name}
    assert {name.rpartition(".")[0] for name in adapters} == {
        "blocks.self_attention.q",
        "blocks.self_attention.out",
        "blocks.cross_attention.q",
        "blocks.cross_attention.out",
        "blocks.mlp_in",
    }
    assert_same({n: v for n, v in found.items() if n not in adapters}, expected)
    for name in adapters:
        assert found[name].any() == name.endswith("lora_a"), name

    # A step of training.
    adapter = model.blocks.mlp_in.lora_b
    draw = np.random.default_rng(1).standard_normal(adapter.shape, np.float32)
    adapter.set_value(jnp.asarray(draw))
    weights.save(model, tmp_path / "merged")
    merged = values(weights.load(tmp_path / "merged", base.config))  # pyright: ignore
    product = 1.5 * found["blocks.mlp_in.lora_a"] @ draw
    kernel = expected["blocks.mlp_in.kernel"].astype(np.float32) + product
    # Rounded once to bfloat16, which has 8 significant bits.
    np.testing.assert_allclose(
        merged.pop("blocks.mlp_in.kernel").astype(np.float32), kernel, rtol=2**-7.99
    )
    expected.pop("blocks.mlp_in.kernel")
    assert_same(merged, expected)


def test_a_named_file_is_one_file(tmp_path: Path):
    path = tmp_path / "new" / "x.safetensors"
    weights.save(make(WAN), path, names="comfyui", max_file_bytes=1)
    assert list(path.parent.iterdir()) == [path]
    assert_same(values(weights.load(path, WAN)), values(make(WAN)))


def test_wrong_arguments_are_told(tmp_path: Path):
    with pytest.raises(InputError, match="config: expected a WanConfig or a MMDiTConf"):
        weights.save(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), tmp_path)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("x", {"names": "pytorch"}, "names='pytorch': expected one of diffusers, orig"),
        ("x", {"max_file_bytes": 0}, "max_file_bytes=0: expected 1 or more"),
        ("x.pt", {}, r"x\.pt: expected a \.safetensors file or a directory; choose"),
        ("file", {}, r"file: expected a \.safetensors file or a directory; choose"),
        ("d.safetensors", {}, r"d\.safetensors: expected a file, .*, got a d"),
    ],
)
def test_where_nothing_can_be_saved_is_told_at_once(
    tmp_path: Path, path: str, options: dict[str, Any], message: str
):
    (tmp_path / "file").touch()
    (tmp_path / "d.safetensors").mkdir()
    # Without the type checks, which only tests have and which would raise first.
    save = inspect.unwrap(weights.save)
    with pytest.raises(InputError, match=message):
        save(make(WAN), tmp_path / path, **options)
    assert {p.name for p in tmp_path.iterdir()} == {"file", "d.safetensors"}
