"""Compiles attention for H100s, without one: cuDNN must run once per direction."""

import json

import pytest

from jaxload.targets.child_process import PLUGIN, run_python

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# Prints custom calls, collectives and temporary bytes of each program by name, and the
# cuDNN calls of our function and of JAX's.
PROGRAMS = """
import collections, functools, json, re
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import PartitionSpec as P
from jaxload import targets
from jaxload.ops.attention import SAVED, attention

NUM_HEADS, HEAD_WIDTH = 12, 128

def mesh(*shape):
    devices = np.array(targets.H100.devices(int(np.prod(shape))))
    return Mesh(devices.reshape(shape), ("data", "heads")[: len(shape)])

def spec(mesh, spec, *shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

def value_and_grads(q, k, v, dout, lengths=None):
    out, vjp = jax.vjp(lambda *a: attention(*a, key_lengths=lengths), q, k, v)
    return out, vjp(dout)

def gradient_of_layers(policy):
    @functools.partial(jax.checkpoint, policy=policy)
    def layer(x, weight):
        h = jnp.tanh(x @ weight).reshape(*x.shape[:2], NUM_HEADS, HEAD_WIDTH)
        return x + attention(h, 2 * h, 3 * h).reshape(x.shape), None

    return jax.grad(lambda ws, x: jax.lax.scan(layer, x, ws)[0].sum())

def describe(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    text = compiled.as_text()
    return {
        "calls": dict(collections.Counter(re.findall(r'target="([^"]+)"', text))),
        "gathers": len(re.findall("all-gather|all-to-all|collective-permute", text)),
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }

def one(num_tokens, dtype="bfloat16", head_width=HEAD_WIDTH):
    x = spec(mesh(1), P(), 1, num_tokens, NUM_HEADS, head_width, dtype=dtype)
    return describe(value_and_grads, x, x, x, x)

def sharded(mesh, q_spec, k_spec, num_keys):
    q = spec(mesh, q_spec, 8, 4096, NUM_HEADS, HEAD_WIDTH)
    k = spec(mesh, k_spec, 8, num_keys, NUM_HEADS, HEAD_WIDTH)
    lengths = spec(mesh, P(k_spec[0] if k_spec else None), 8, dtype="int32")
    return describe(value_and_grads, q, k, k, q, lengths)

def jax_attention(q, k, v, lengths=None):
    if lengths is None:
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")
    return jax.nn.dot_product_attention(
        q, k, v, implementation="cudnn",
        query_seq_lengths=jnp.full_like(lengths, q.shape[1]),
        key_value_seq_lengths=lengths,
    )

def our_attention(q, k, v, lengths=None):
    return attention(q, k, v, key_lengths=lengths)

def cudnn_calls(attend, *lengths):
    def gradients(q, k, v, dout, *lengths):
        out, vjp = jax.vjp(lambda *qkv: attend(*qkv, *lengths), q, k, v)
        return out, vjp(dout)

    q = spec(h100, P(), 2, 1024, NUM_HEADS, HEAD_WIDTH)
    k = spec(h100, P(), 2, 512, NUM_HEADS, HEAD_WIDTH)
    text = jax.jit(gradients).lower(q, k, k, q, *lengths).compile().as_text()
    calls = [line for line in text.splitlines() if "cudnn$" in line]
    # Operands and attributes, without the seed of dropout, which is not used.
    noise = r'metadata=.*?\\}, |/\\*index=\\d\\*/|"seed": \\d+, '
    pattern = r"custom-call\\((.*?)\\), (.*)"
    return [re.search(pattern, re.sub(noise, "", call)).groups() for call in calls]

# JAX's function requires the cuDNN library when it is traced.
cudnn.check_cudnn_version = lambda: 91000
width = NUM_HEADS * HEAD_WIDTH
h100 = mesh(1)
layers = spec(h100, P(), 4, width, width), spec(h100, P(), 1, 32760, width)
policies = jax.checkpoint_policies
batch, both = P("data", None, None, None), P("data", None, "heads", None)
print(json.dumps({
    "32760 tokens": one(32760),
    "16380 tokens": one(16380),
    "odd tokens": one(1031),
    "float16": one(1024, "float16"),
    "float32": one(4096, "float32"),
    "float32, twice": one(8192, "float32"),
    "wide heads": one(1024, head_width=136),
    "saved": describe(
        gradient_of_layers(policies.save_only_these_names(SAVED)), *layers
    ),
    "not saved": describe(gradient_of_layers(policies.nothing_saveable), *layers),
    "batch": sharded(mesh(8), batch, batch, 4096),
    "batch, keys whole": sharded(mesh(8), batch, P(), 77),
    "batch and heads": sharded(mesh(2, 4), both, both, 4096),
    "calls": [cudnn_calls(attend) for attend in (our_attention, jax_attention)],
    "calls with lengths": [
        cudnn_calls(attend, spec(h100, P(), 2, dtype="int32"))
        for attend in (our_attention, jax_attention)
    ],
}))
"""

ONCE_EACH_WAY = {"__cudnn$fmhaSoftmax": 1, "__cudnn$fmhaSoftmaxBackward": 1}


@pytest.fixture(scope="module")
def programs(missing):
    """Compiles all programs in a child process; returns their descriptions."""
    if not PLUGIN.is_dir():
        remedy = "run `make test REQUIRE=cpu,cuda`"
        missing("cuda", f"JAX's CUDA plugin is not in {PLUGIN}; {remedy}")
    return json.loads(run_python("-c", PROGRAMS))


@pytest.mark.parametrize("name", ["32760 tokens", "odd tokens", "float16"])
def test_cudnn_runs_once_each_way(programs, name):
    assert programs[name]["calls"] == ONCE_EACH_WAY


@pytest.mark.parametrize("name", ["float32", "wide heads"])
def test_what_cudnn_does_not_take_runs_in_blocks(programs, name):
    assert not [call for call in programs[name]["calls"] if "cudnn" in call]


def test_cudnn_is_asked_for_what_jax_asks_it_for(programs):
    ours, of_jax = programs["calls"]
    assert len(ours) == 2
    assert ours == of_jax
    ours, of_jax = programs["calls with lengths"]
    for (operands, what), (jax_operands, jax_what) in zip(ours, of_jax, strict=True):
        assert '"mask_type": "PADDING"' in what
        assert what == jax_what
        # Our key lengths were clipped before, since padding is removed.
        *_, queries, keys = operands.split(", ")
        *_, jax_queries, jax_keys = jax_operands.split(", ")
        assert queries == jax_queries
        assert ("clamp" in keys, jax_keys) == (True, "%lengths_0_.1")


@pytest.mark.parametrize(
    ("few", "many"),
    [("16380 tokens", "32760 tokens"), ("float32", "float32, twice")],
)
def test_memory_is_linear_in_tokens(programs, few, many):
    few, many = (programs[name]["temporary_bytes"] for name in (few, many))
    assert 1.8 < many / few < 2.2


def test_what_is_saved_is_not_computed_again(programs):
    assert programs["saved"]["calls"] == ONCE_EACH_WAY
    assert programs["not saved"]["calls"]["__cudnn$fmhaSoftmax"] == 2


@pytest.mark.parametrize("name", ["batch", "batch, keys whole", "batch and heads"])
def test_what_is_cut_stays_cut(programs, name):
    assert programs[name]["calls"] == ONCE_EACH_WAY
    assert programs[name]["gathers"] == 0
