"""Tests of jaxload.models.weights: models from files of others and back."""

import dataclasses
import functools
import inspect
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.models import loading as benchmark
from jaxload.errors import InputError
from jaxload.models import MMDiTConfig, WanConfig, weights
from jaxload.models.weights import files
from jaxload.models.weights.families import family_of
from jaxload.models.weights.names import PREFIXES, Naming
from jaxload.models.weights.variables import variables_of

Config = WanConfig | MMDiTConfig

WAN = WanConfig(
    width=32,
    depth=3,
    num_heads=2,
    mlp_width=64,
    text_dim=16,
    num_text_tokens=512,
    condition_channels=20,
    image_dim=24,
    num_image_positions=6,
)
MMDIT = MMDiTConfig(
    width=32,
    num_double_blocks=2,
    num_single_blocks=3,
    num_refiner_blocks=1,
    num_heads=2,
    mlp_width=80,
    text_dim=16,
    num_text_tokens=256,
    pooled_dim=20,
    guidance=True,
    rope_widths=(4, 6, 6),
)
CONFIGS = [pytest.param(WAN, id="wan"), pytest.param(MMDIT, id="mmdit")]


@functools.cache
def abstract(config: Config) -> nnx.Module:
    model = family_of(config).model
    return nnx.eval_shape(lambda: model(config, rngs=nnx.Rngs(0)))


@functools.cache
def make(config: Config) -> nnx.Module:
    """A model with random values in every parameter, without running its own init."""
    graphdef, state = nnx.split(abstract(config))
    rng = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        value = rng.standard_normal(leaf.shape, np.float32)
        return jax.device_put(value.astype(leaf.dtype))

    return nnx.merge(graphdef, jax.tree.map(draw, state))


def values(model: nnx.Module) -> dict[str, np.ndarray]:
    variables = variables_of(nnx.state(model))
    return {".".join(p): np.asarray(v.get_value()) for p, v in variables.items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def read(directory: Path) -> dict[str, np.ndarray]:
    """What files hold, read by another library."""
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= safetensors.numpy.load_file(path)
    return tensors


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """Writes files by another library."""
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(tensors, path)
    return path


@pytest.fixture(scope="module", params=CONFIGS)
def config(request: pytest.FixtureRequest) -> Config:
    return request.param


@pytest.fixture(scope="module")
def wan_tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """A Wan model as diffusers has it."""
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
    message = r"1 of a type other than F32, F16, BF16: proj_out\.bias \(F8_E4M3\)$"
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
        r"expected tensors of Wan 2\.1, got others: encoder\.conv_in\.weight; known "
        "are files of Wan 2.1 and HunyuanVideo"
    )
    with pytest.raises(InputError, match=message):
        weights.load(path, WAN)


def test_the_config_is_read_and_written(config: Config, tmp_path: Path):
    weights.save(make(config), tmp_path)
    assert weights.read_config(tmp_path) == config
    found = weights.load(tmp_path)
    assert_same(values(found), values(make(config)))


@pytest.mark.parametrize("names", ["original", "comfyui"])
def test_without_a_config_it_must_be_given(names: Naming, tmp_path: Path):
    weights.save(make(WAN), tmp_path)
    # To diffusers, its config.json beside these names would be a model without weights.
    weights.save(make(WAN), tmp_path, names=names)
    message = r"config\.json: .* got no such file; give the config when you load"
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
            "image_condition_type: expected null, got 'token_replace'; models like",
        ),
        (MMDIT, "rope_axes_dim", [16], "rope_axes_dim: expected three widths, got"),
        (MMDIT, "_class_name", "UNet", "expected WanTransformer3DModel or .* 'UNet'"),
    ],
)
def test_a_config_that_no_model_here_has_is_refused(
    config: Config, field: str, value: Any, message: str, tmp_path: Path
):
    files.write(tmp_path / "diffusion_pytorch_model.safetensors", [], [])
    content = family_of(config).write_config(config) | {field: value}
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
    # One rounding to 8 bits, and not another.
    np.testing.assert_allclose(
        merged.pop("blocks.mlp_in.kernel").astype(np.float32), kernel, rtol=2**-7.99
    )
    expected.pop("blocks.mlp_in.kernel")
    assert_same(merged, expected)


def shardings(config: Config, mesh: Mesh) -> nnx.State:
    """Each parameter along the first of its axes, from the last, that can be cut."""

    def place(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        axes: list[str | None] = [None] * len(leaf.shape)
        even = [i for i, size in enumerate(leaf.shape) if size % 2 == 0]
        if even:
            axes[even[len(leaf.shape) % len(even)]] = "x"
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map(place, nnx.state(abstract(config)))


@pytest.mark.parametrize(
    ("config", "names"), [(WAN, "diffusers"), (MMDIT, "original")], ids=["wan", "mmdit"]
)
def test_parameters_are_read_into_their_shards_and_saved_from_them(
    config: Config, names: Naming, tmp_path: Path
):
    config = dataclasses.replace(config, lora_rank=2)
    model = make(dataclasses.replace(config, lora_rank=0))
    weights.save(model, tmp_path / "a", names=names)
    placed = shardings(config, Mesh(np.array(jax.devices()), ("x",)))
    found = weights.load(tmp_path / "a", config, shardings=placed)

    given, cut = variables_of(placed), set()
    for path, variable in variables_of(nnx.state(found)).items():
        value = variable.get_value()
        sharding = given[path].get_value()
        assert value.sharding == sharding
        cut |= {i for i, axis in enumerate(sharding.spec) if axis}
        for shard in value.addressable_shards:
            np.testing.assert_array_equal(shard.data, np.asarray(value)[shard.index])
    assert cut == {0, 1, 2}  # Layers, inputs and outputs.
    loaded = {n: v for n, v in values(found).items() if "lora" not in n}
    assert_same(loaded, values(model))
    weights.save(found, tmp_path / "b", names=names)
    assert_same(read(tmp_path / "b"), read(tmp_path / "a"))


def test_a_model_that_was_saved_is_not_kept_on_the_host(tmp_path: Path):
    weights.save(make(WAN), tmp_path)
    placed = shardings(WAN, Mesh(np.array(jax.devices()), ("x",)))
    found = weights.load(tmp_path, WAN, shardings=placed)
    weights.save(found, tmp_path / "again")
    for path, variable in variables_of(nnx.state(found)).items():
        # Where JAX keeps what it gathered from several devices.
        assert variable.get_value()._npy_value is None, path


def test_layers_alone_can_be_cut(tmp_path: Path):
    config = dataclasses.replace(WAN, depth=4)
    model = make(config)
    weights.save(model, tmp_path)
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def place(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        spec = PartitionSpec("x") if leaf.shape[0] == 4 else PartitionSpec()
        return NamedSharding(mesh, spec)

    placed = jax.tree.map(place, nnx.state(abstract(config)))
    found: Any = weights.load(tmp_path, config, shardings=placed)
    kernel = found.blocks.mlp_in.kernel.get_value()
    assert [s.data.shape for s in kernel.addressable_shards] == [(2, 32, 64)] * 2
    assert_same(values(found), values(model))


def test_shardings_must_be_of_all_parameters(tmp_path: Path):
    weights.save(make(WAN), tmp_path)
    placed = shardings(WAN, Mesh(np.array(jax.devices()), ("x",)))
    del placed["patch_in"]
    with pytest.raises(InputError, match=r"got none for patch_in\.bias, patch_in\.ker"):
        weights.load(tmp_path, WAN, shardings=placed)


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
        ("d.safetensors", {}, r"d\.safetensors: expected a file, by its name, got a d"),
    ],
)
def test_where_nothing_can_be_saved_is_told_at_once(
    tmp_path: Path, path: str, options: dict[str, Any], message: str
):
    (tmp_path / "file").touch()
    (tmp_path / "d.safetensors").mkdir()
    # Without the check of types, which comes first here and not for users.
    save = inspect.unwrap(weights.save)
    with pytest.raises(InputError, match=message):
        save(make(WAN), tmp_path / path, **options)
    assert {p.name for p in tmp_path.iterdir()} == {"file", "d.safetensors"}


def test_neither_loading_nor_saving_holds_a_model_twice(tmp_path: Path):
    # An MLP so wide that one of its parameters is two fifths of the model: a copy of it
    # would be seen.
    config = dataclasses.replace(
        benchmark.CONFIG, width=768, depth=8, num_heads=6, mlp_width=16 * 768
    )
    path = tmp_path / "x.safetensors"
    benchmark.write_random(path, config)
    loading, saving = benchmark.measure(path, config)
    assert loading.file_bytes > 300e6
    # 1.04 and 0.12 of the file, up to 0.22 if busy; a copy of that parameter is 0.38.
    assert loading.ratio < 1.2, loading
    assert saving.ratio < 0.35, saving
