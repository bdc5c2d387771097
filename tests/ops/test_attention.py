"""Tests of jaxload.ops.attention."""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jax_core
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxload.ops.attention import SAVED, attention, attention_reference
from jaxload.testing import assert_trees_close

# Batch, queries, keys, heads, head width and key lengths. Blocks have at most 512
# queries, and 256 in the backward pass.
CASES = {
    "odd": (2, 5, 7, 3, 5, None),
    "one-query": (2, 1, 9, 2, 8, None),
    "one-key": (1, 6, 1, 2, 8, None),
    "one-head": (3, 8, 8, 1, 16, None),
    "full-blocks": (1, 1024, 40, 1, 8, None),
    "blocks-with-a-remainder": (1, 1031, 1031, 2, 8, None),
    "few-queries-to-many-keys": (1, 3, 700, 2, 8, None),
    "lengths": (3, 6, 9, 2, 8, (9, 4, 1)),
    "lengths-in-blocks": (2, 601, 70, 2, 8, (70, 33)),
    "length-0": (3, 6, 9, 2, 8, (0, 9, 0)),
}


def _inputs(case, dtype=jnp.float32) -> Any:
    """Returns q, k, v, the gradient of the result, and lengths."""
    batch, num_queries, num_keys, num_heads, head_width, lengths = case
    rng = np.random.default_rng(0)
    arrays = [
        jnp.asarray(rng.standard_normal((batch, n, num_heads, head_width)), dtype)
        for n in (num_queries, num_keys, num_keys, num_queries)
    ]
    return *arrays, None if lengths is None else jnp.asarray(lengths, jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def _value_and_grads(form: Any, q, k, v, dout, lengths=None):
    out, vjp = jax.vjp(functools.partial(form, key_lengths=lengths), q, k, v)
    return out, vjp(dout)


def _float64(q, k, v, dout, lengths=None):
    """Computes the expected result of `_value_and_grads` in float64."""
    q, k, v, dout = (np.asarray(x).astype(np.float64) for x in (q, k, v, dout))
    num_keys, scale = k.shape[1], 1 / np.sqrt(q.shape[-1])
    lengths = np.full(len(q), num_keys) if lengths is None else np.asarray(lengths)
    is_key = (np.arange(num_keys) < lengths[:, None])[:, None, None]
    exp = np.exp(np.einsum("bsnk,btnk->bnst", q, k) * scale) * is_key
    weights = exp / np.maximum(exp.sum(-1, keepdims=True), 1e-300)
    dweights = np.einsum("bsnk,btnk->bnst", dout, v)
    dscores = dweights - (weights * dweights).sum(-1, keepdims=True)
    dscores *= weights * scale
    return np.einsum("bnst,btnk->bsnk", weights, v), (
        np.einsum("bnst,btnk->bsnk", dscores, k),
        np.einsum("bnst,bsnk->btnk", dscores, q),
        np.einsum("bnst,bsnk->btnk", weights, dout),
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_against_float64(case, dtype):
    _assert_matches_float64(attention, _inputs(CASES[case], dtype))


def test_float16_against_float64():
    _assert_matches_float64(attention, _inputs(CASES["odd"], jnp.float16))


@pytest.mark.parametrize("case", ["odd", "lengths", "length-0"])
def test_reference_against_float64(case):
    _assert_matches_float64(attention_reference, _inputs(CASES[case]))


def _assert_matches_float64(form, inputs):
    actual = _value_and_grads(form, *inputs)
    assert_trees_close(actual, _float64(*inputs))


def test_large_scores_do_not_overflow():
    q, k, v, dout, _ = _inputs(CASES["odd"])
    out, grads = _value_and_grads(attention, 100 * q, k, v, dout)
    assert_trees_close(out, attention_reference(100 * q, k, v))
    assert all(np.isfinite(gradient).all() for gradient in grads)


@pytest.mark.parametrize("form", [attention, attention_reference])
@pytest.mark.parametrize("case", ["lengths", "length-0"])
def test_what_lies_beyond_lengths_changes_nothing(case, form):
    q, k, v, dout, lengths = _inputs(CASES[case])
    beyond = jnp.arange(k.shape[1])[None] >= lengths[:, None]
    run = functools.partial(_value_and_grads, form)
    clean = run(q, k, v, dout, lengths)
    for garbage in (np.nan, np.inf, 1e30):
        bad_k, bad_v = (jnp.where(beyond[..., None, None], garbage, x) for x in (k, v))
        found = run(q, bad_k, bad_v, dout, lengths)
        jax.tree.map(np.testing.assert_array_equal, found, clean)
    for gradient in clean[1][1:]:
        np.testing.assert_array_equal(np.asarray(gradient)[np.asarray(beyond)], 0)


def test_length_0_gives_zeros():
    inputs = _inputs(CASES["length-0"])
    lengths = inputs[-1]
    for array in jax.tree.leaves(_value_and_grads(attention, *inputs)):
        empty = np.asarray(array)[np.asarray(lengths) == 0]
        np.testing.assert_array_equal(empty, 0)


def test_lengths_of_all_keys_are_as_none():
    q, k, v, dout, _ = _inputs(CASES["odd"])
    lengths = jnp.full(2, k.shape[1], jnp.int32)
    assert_trees_close(
        _value_and_grads(attention, q, k, v, dout, lengths),
        _value_and_grads(attention, q, k, v, dout),
    )


def test_samples_do_not_depend_on_each_other():
    inputs = _inputs(CASES["lengths"])
    run = functools.partial(_value_and_grads, attention)
    together = run(*inputs)
    for i in range(3):
        alone = run(*(x[i : i + 1] for x in inputs))
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], together)
        jax.tree.map(np.testing.assert_array_equal, one, alone)


def test_under_vmap():
    inputs = [jnp.stack([x, x[::-1]]) for x in _inputs(CASES["lengths"])]
    run = functools.partial(_value_and_grads, attention)
    mapped = jax.jit(jax.vmap(run))(*inputs)
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i], mapped)
        assert_trees_close(one, run(*(x[i] for x in inputs)))


def test_keys_that_vmap_does_not_map():
    q, k, v, _, _ = _inputs(CASES["odd"])
    mapped = jax.vmap(attention, in_axes=(0, None, None))(jnp.stack([q, -q]), k, v)
    assert_trees_close(mapped, jnp.stack([attention(q, k, v), attention(-q, k, v)]))


# Memory.


def _num_temporary_bytes(function, num_tokens):
    x = jax.ShapeDtypeStruct((1, num_tokens, 2, 16), jnp.float32)
    memory = jax.jit(function).lower(x, x, x, x).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize("direction", ["forward", "gradients"])
def test_memory_is_linear_in_tokens(direction):
    def run(q, k, v, dout):
        if direction == "forward":
            return attention(q, k, v)
        return _value_and_grads(attention, q, k, v, dout)

    few, many = (_num_temporary_bytes(run, n) for n in (4096, 8192))
    assert 1.8 < many / few < 2.2


# Rematerialisation.


def _num_matmuls(jaxpr):
    """Counts matmuls, also in sub-programs for other platforms."""
    count = 0
    for equation in jaxpr.eqns:
        count += equation.primitive.name == "dot_general"
        count += sum(map(_num_matmuls, jax_core.jaxprs_in_params(equation.params)))
    return count


@pytest.mark.parametrize(
    ("policy", "num_matmuls"),
    [
        (jax.checkpoint_policies.save_only_these_names(SAVED), 2 + 5),
        (jax.checkpoint_policies.nothing_saveable, 2 + 2 + 5),
    ],
)
def test_what_is_saved_is_not_computed_again(policy, num_matmuls):
    q, k, v, _, lengths = _inputs(CASES["lengths"])

    @jax.grad
    @functools.partial(jax.checkpoint, policy=policy)
    def gradient(q):
        out = attention(jnp.sin(q), k, v, key_lengths=lengths)
        return jnp.sin(out).sum()

    assert _num_matmuls(jax.make_jaxpr(gradient)(q).jaxpr) == num_matmuls


# On the two devices of this process.


SPECS = {
    "batch": (P("device"), P("device"), P("device"), P("device"), P("device")),
    "heads": (*[P(None, None, "device")] * 4, P()),
    "keys-are-whole": (P("device"), P(), P(), P("device"), P()),
    "only-keys-are-cut": (P(), P("device"), P("device"), P(), P()),
    "queries-and-keys-differ": (
        *(P("device"), P(None, None, "device"), P("device")),
        *(P(None, None, "device"), P("device")),
    ),
    "tokens": (*[P(None, "device")] * 4, P()),
}
KEPT = ("batch", "heads", "keys-are-whole")  # XLA need not gather for these.


def _mesh(axis_type=AxisType.Auto):
    return jax.make_mesh((2,), ("device",), axis_types=(axis_type,))


@pytest.mark.parametrize("specs", SPECS)
def test_on_a_mesh(specs):
    inputs = _inputs((2, 4, 6, 2, 8, (3, 6)))
    placed = [
        jax.device_put(x, NamedSharding(_mesh(), spec))
        for x, spec in zip(inputs, SPECS[specs], strict=True)
    ]
    run = jax.jit(functools.partial(_value_and_grads, attention))
    assert_trees_close(run(*placed), _float64(*inputs))
    if specs in KEPT:
        assert "all-gather" not in str(run.lower(*placed).compile().as_text())


def test_what_is_cut_stays_cut():
    *inputs, _ = _inputs((2, 4, 6, 2, 8, None))
    sharding = NamedSharding(_mesh(), P(None, None, "device"))
    run = jax.jit(functools.partial(_value_and_grads, attention))
    results = run(*(jax.device_put(x, sharding) for x in inputs))
    for array in jax.tree.leaves(results):
        assert array.sharding.is_equivalent_to(sharding, 4)


@pytest.mark.parametrize(
    "spec",
    [P("device"), P(None, "device"), P(None, None, None, "device")],
    ids=["mapped", "batch", "heads"],
)
def test_under_vmap_on_a_mesh(spec):
    *inputs, _ = _inputs((2, 4, 6, 2, 8, None))
    inputs = [jnp.stack([x, x[::-1]]) for x in inputs]
    placed = [jax.device_put(x, NamedSharding(_mesh(), spec)) for x in inputs]
    run = jax.jit(jax.vmap(functools.partial(_value_and_grads, attention)))
    results = run(*placed)
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i], results)
        assert_trees_close(one, _float64(*(x[i] for x in inputs)))
    assert "all-gather" not in str(run.lower(*placed).compile().as_text())


@pytest.mark.parametrize("specs", ["batch", "heads"])
def test_on_a_mesh_with_explicit_axes(specs):
    *inputs, _ = _inputs((2, 4, 6, 2, 8, None))
    mesh = _mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in zip(inputs, SPECS[specs], strict=False)
        ]
        run = jax.jit(functools.partial(_value_and_grads, attention))
        assert_trees_close(run(*placed), _float64(*inputs))


@pytest.mark.parametrize("specs", ["batch", "heads", "keys-are-whole"])
def test_under_shard_map(specs):
    # If all shards share the keys, the gradients of keys are summed over shards.
    *inputs, _ = _inputs((2, 4, 6, 2, 8, None))
    if specs == "keys-are-whole":
        inputs[1:3] = (x[:1] for x in inputs[1:3])
    in_specs = SPECS[specs][:4]
    run = jax.shard_map(
        functools.partial(_value_and_grads, attention),
        mesh=_mesh(),
        in_specs=in_specs,
        out_specs=(in_specs[0], in_specs[:3]),
    )
    actual = jax.jit(run)(*inputs)
    if specs == "keys-are-whole":
        q, k, v, dout = inputs
        k, v = (jnp.broadcast_to(x, (2, *x.shape[1:])) for x in (k, v))
        out, (dq, dk, dv) = _float64(q, k, v, dout)
        desired = out, (dq, dk.sum(0, keepdims=True), dv.sum(0, keepdims=True))
    else:
        desired = _float64(*inputs)
    assert_trees_close(actual, desired)


# Arguments.


def _of(shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


Q, K = _of((2, 3, 4, 8)), _of((2, 5, 4, 8))


@pytest.mark.parametrize(
    ("q", "k", "v", "lengths", "message"),
    [
        (_of((2, 3, 8)), K, K, None, r"expected q of shape \[batch, .*got \(2, 3, 8\)"),
        (_of((2, 0, 4, 8)), K, K, None, r"none of them 0, got \(2, 0, 4, 8\)"),
        (_of((2, 3, 4, 8), jnp.int32), K, K, None, "expected q of dtype .*got int32"),
        (
            Q,
            _of((1, 5, 4, 8)),
            K,
            None,
            r"k of shape \(2, keys, 4, 8\).*\(1, 5, 4, 8\)",
        ),
        (Q, _of((2, 0, 4, 8)), K, None, r"with 1 key or more; got \(2, 0, 4, 8\)"),
        (Q, K, Q, None, r"v of shape \(2, 5, 4, 8\), as k, got \(2, 3, 4, 8\)"),
        (Q, K, _of(K.shape, jnp.bfloat16), None, "v of dtype float32, as q, got bfl"),
        (Q, K, K, _of((3,), jnp.int32), r"shape \(2,\).*got int32 \(3,\)"),
        (Q, K, K, _of((2,)), r"of integers, got float32 \(2,\)"),
    ],
)
def test_refuses_arguments(q, k, v, lengths, message):
    # Without the checks of annotations, which only tests have.
    unchecked = inspect.unwrap(attention)
    with pytest.raises(ValueError, match=f"^attention: .*{message}"):
        jax.eval_shape(
            lambda *arrays: unchecked(*arrays[:3], key_lengths=arrays[3]),
            *(q, k, v, lengths),
        )
