"""Tests the layer_norm_modulate family on a mesh: shards stay, sums are complete."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxload.ops import layer_norm_modulate
from jaxload.ops._kernel import Kernel
from jaxload.testing import assert_trees_close

PROGRAMS = Path(__file__).with_name("sharded_programs.py")

# Programs run in a process with eight devices.


@pytest.fixture(scope="module")
def sharded_programs(operations, tmp_path_factory):
    """Compiles and runs all programs; returns their descriptions and results."""
    directory = tmp_path_factory.mktemp("sharded_programs")
    inputs = {
        f"{operation.name}/{i}": np.asarray(array, np.float32)
        for operation in operations
        for i, array in enumerate(jax.tree.leaves(_bfloat16_inputs(operation)))
    }
    np.savez(directory / "inputs.npz", allow_pickle=False, **inputs)
    results = directory / "results.npz"
    command = [sys.executable, PROGRAMS, directory / "inputs.npz", results]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), dict(np.load(results))


def _bfloat16_inputs(operation):
    return operation.inputs((8, 80, 24), jnp.bfloat16)  # The sizes of the programs.


CUT = [
    "batch",
    "batch-over-all",
    "tokens",
    "tokens-over-all",
    "batch-and-tokens",
    "width",
]


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
@pytest.mark.parametrize("cut", CUT)
def test_kernels_run_on_shards(sharded_programs, operation, cut, axis_type):
    report, _ = sharded_programs
    program = report[f"{operation.name}/{cut}/{axis_type}"]
    for what, expected in program["expected"].items():
        assert program["found"][what] == expected


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
@pytest.mark.parametrize("cut", CUT)
def test_shards_match_float64(sharded_programs, operation, cut, axis_type):
    _, arrays = sharded_programs
    arguments, cotangents = _bfloat16_inputs(operation)
    leaves, structure = jax.tree.flatten((cotangents, arguments))
    name = f"{operation.name}/{cut}/{axis_type}"
    results, grads = structure.unflatten(
        jnp.asarray(arrays[f"{name}/{i}"], jnp.bfloat16) for i in range(len(leaves))
    )
    desired = operation.float64(arguments, cotangents, results)
    assert_trees_close((results, grads), desired)


# On the two devices of this process.


def _results_and_grads(operation, arguments, cotangents):
    results, vjp = jax.vjp(operation.kernel, *arguments)
    return results, vjp(cotangents)


def _mesh(*shape):
    axes = ("data", "sequence")[: len(shape)]
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(shape))


def _specs(operation, tokens=None, batch=None):
    """Returns the partition specs of arguments and cotangents."""
    cut = {"BSD": P(batch, tokens), "BD": P(batch)}
    arguments = tuple(cut[name.split("_")[1]] for name in operation.arguments)
    return arguments, (cut["BSD"],) * operation.num_results


def _place(mesh, inputs, specs):
    return jax.tree.map(
        lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec)),
        inputs,
        specs,
    )


def _gathers(jitted, *inputs):
    return "all-gather" in jitted.lower(*inputs).compile().as_text()


def _assert_matches_float64(operation, actual, inputs):
    assert_trees_close(actual, operation.float64(*inputs, actual[0]))


SPECS = {"batch": {"batch": "data"}, "tokens": {"tokens": "data"}}


@pytest.mark.parametrize("specs", SPECS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_under_shard_map(operation, specs, dtype):
    # If tokens are sharded, all shards share the modulations: gradients are summed.
    arguments, cotangents = _specs(operation, **SPECS[specs])
    mapped = jax.jit(
        jax.shard_map(
            functools.partial(_results_and_grads, operation),
            mesh=_mesh(2),
            in_specs=(arguments, cotangents),
            out_specs=(cotangents, arguments),
        )
    )
    inputs = operation.inputs((2, 4, 8), dtype)
    _assert_matches_float64(operation, mapped(*inputs), inputs)
    lowered = mapped.lower(*inputs).as_text()
    summed = re.findall(r"all_reduce.*?\) -> tensor<(\w+)>", lowered, re.DOTALL)
    num_modulations = sum(name.endswith("_BD") for name in operation.arguments)
    assert summed == ["2x8xf32"] * (num_modulations if specs == "tokens" else 0)


# shard_map has one mesh axis, and XLA partitions over the other.
@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
@pytest.mark.parametrize("specs", SPECS)
def test_under_partial_shard_map(operation, specs, shape):
    mesh = _mesh(*shape)
    arguments, cotangents = _specs(operation, **SPECS[specs])
    mapped = jax.shard_map(
        functools.partial(_results_and_grads, operation),
        mesh=mesh,
        in_specs=(arguments, cotangents),
        out_specs=(cotangents, arguments),
        axis_names={"data"},
    )
    inputs = operation.inputs((2, 4, 8))
    placed = _place(mesh, inputs, _specs(operation, batch="sequence"))
    _assert_matches_float64(operation, jax.jit(mapped)(*placed), inputs)


def test_under_vmap(operation):
    # The sharded axis is the one that vmap maps.
    inputs = operation.inputs((2, 2, 4, 8))
    placed = jax.device_put(inputs, NamedSharding(_mesh(2), P("data")))
    mapped = jax.jit(jax.vmap(functools.partial(_results_and_grads, operation)))
    mapped_results = mapped(*placed)
    for i in range(2):
        one = jax.tree.map(lambda array, i=i: array[i], (mapped_results, inputs))
        _assert_matches_float64(operation, *one)
    assert not _gathers(mapped, *placed)


def test_in_a_scan(operation):
    @jax.jit
    def run(arguments, cotangents):
        def body(total, _):
            results_and_grads = _results_and_grads(operation, arguments, cotangents)
            return jax.tree.map(jnp.add, total, results_and_grads), None

        zeros = jax.tree.map(jnp.zeros_like, (cotangents, arguments))
        return jax.lax.scan(body, zeros, length=1)[0]

    inputs = operation.inputs((2, 4, 8))
    placed = _place(_mesh(2), inputs, _specs(operation, batch="data"))
    _assert_matches_float64(operation, run(*placed), inputs)
    assert not _gathers(run, *placed)


def test_tokens_that_do_not_divide(operation):
    # XLA pads the second shard of seven tokens; the padding must not be summed.
    @jax.jit
    def run(arguments, cotangents):
        return _results_and_grads(operation, *_first_tokens(arguments, cotangents))

    inputs = operation.inputs((2, 8, 8))
    placed = _place(_mesh(2), inputs, _specs(operation, tokens="data"))
    _assert_matches_float64(operation, run(*placed), _first_tokens(*inputs))


def _first_tokens(*inputs):
    return jax.tree.map(lambda a: a[:, :7] if a.ndim == 3 else a, inputs)


def test_arguments_that_are_cut_otherwise_than_cotangents(operation):
    inputs = operation.inputs((2, 4, 8))
    specs = (_specs(operation, batch="data")[0], _specs(operation, tokens="data")[1])
    run = jax.jit(functools.partial(_results_and_grads, operation))
    _assert_matches_float64(operation, run(*_place(_mesh(2), inputs, specs)), inputs)


def test_arguments_that_are_whole_are_cut_as_cotangents_are(operation):
    inputs = operation.inputs((2, 4, 8))
    specs = (_specs(operation)[0], _specs(operation, tokens="data")[1])
    placed = _place(_mesh(2), inputs, specs)
    run = jax.jit(functools.partial(_results_and_grads, operation))
    _assert_matches_float64(operation, run(*placed), inputs)
    assert not _gathers(run, *placed)


def test_arrays_without_a_mesh_of_their_own(operation):
    inputs = operation.inputs((2, 4, 8))
    with jax.set_mesh(_mesh(2)):
        run = jax.jit(functools.partial(_results_and_grads, operation))
        _assert_matches_float64(operation, run(*inputs), inputs)


@pytest.mark.usefixtures("cpu_kernels")
def test_the_compile_cache_distinguishes_eps():
    # The cache key omits the address of the object that partitions a call.
    sharding = NamedSharding(_mesh(2), P("data"))
    x_BSD = jax.ShapeDtypeStruct((2, 4, 8), jnp.float32, sharding=sharding)
    scale_BD = jax.ShapeDtypeStruct((2, 8), jnp.float32, sharding=sharding)

    def lower(eps):
        function = jax.jit(functools.partial(layer_norm_modulate, eps=eps))
        text = function.lower(x_BSD, scale_BD, scale_BD).as_text()
        text, num_calls = re.subn(r'backend_config = "\d+"', "", text)
        assert num_calls == 1
        return text

    assert lower(1e-6) == lower(1e-6) != lower(1e-5)


def test_the_compile_cache_distinguishes_kernels_of_the_same_types():
    sharding = NamedSharding(_mesh(2), P("data"))
    x_BSD = jax.ShapeDtypeStruct((2, 4, 8), jnp.float32, sharding=sharding)

    def lower(target):
        kernel = Kernel(target, operands=("BSD",), results=("BSD",))
        call = functools.partial(kernel, lambda x_BSD: (x_BSD,))
        text = jax.jit(call).lower(x_BSD).as_text()
        text, num_calls = re.subn(r'backend_config = "\d+"', "", text)
        assert num_calls == 1
        return text

    assert lower("one") == lower("one") != lower("another")
