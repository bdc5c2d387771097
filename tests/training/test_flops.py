"""Compares the analytic cost with XLA's FLOP count of the training program."""

import dataclasses
import functools

import jax
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxload.balance.architecture import analytic_law
from jaxload.balance.form import Grid
from jaxload.balance.program import Program, Remat
from jaxload.config import Config
from jaxload.models import MMDiTConfig, ModelConfig, WanConfig
from jaxload.models.mmdit import blocks as mmdit_blocks
from jaxload.models.wan import blocks as wan_blocks
from jaxload.ops.attention import SAVED, attention_reference
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import place
from jaxload.planning.analytic_cost import analytic_cost, architecture_of
from jaxload.runs.setup import trainer_of
from jaxload.shapes.shape import Shape
from jaxload.training.lowering import Lowering

# Heads are as wide as in large models, so that matmuls dominate the softmax.
SIZES = {
    "width": 512,
    "num_heads": 4,
    "mlp_width": 2_048,
    "num_text_tokens": 64,
    "text_dim": 16,
    "compute_dtype": "float32",
}
MODELS: dict[str, ModelConfig] = {
    "wan": WanConfig(**SIZES, depth=1),
    "mmdit": MMDiTConfig(
        **SIZES,
        num_double_blocks=1,
        num_single_blocks=1,
        num_refiner_blocks=1,
        pooled_dim=16,
    ),
}


@pytest.fixture(autouse=True)
def _attention_without_loops(monkeypatch: pytest.MonkeyPatch):
    """Replaces blocked attention: XLA counts the body of a loop only once."""
    for module in (wan_blocks, mmdit_blocks):
        monkeypatch.setattr(module, "attention", attention_at_once)


@functools.partial(jax.custom_vjp, nondiff_argnames=("name",))
def attention_at_once(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    key_lengths: jax.Array | None = None,
    name: str = SAVED,
) -> jax.Array:
    return attention_reference(q, k, v, key_lengths=key_lengths)


def attention_at_once_fwd(q, k, v, key_lengths, name):
    reference = functools.partial(attention_reference, key_lengths=key_lengths)
    out, vjp = jax.vjp(reference, q, k, v)

    def keep(x: jax.Array) -> jax.Array:
        return x if x.shape in (q.shape, k.shape) else checkpoint_name(x, name)

    # The softmax weights are saved too, so that scores are not recomputed.
    return checkpoint_name(out, name), jax.tree.map(keep, vjp)


def attention_at_once_bwd(name, vjp, dout):
    return *vjp(dout), None


attention_at_once.defvjp(attention_at_once_fwd, attention_at_once_bwd)


def program_of(model: ModelConfig, shape: Shape, batch: int = 1) -> Program:
    assert model.remat != "auto"
    return Program(form=Grid.of(shape), batch=batch, remat=model.remat)


def xla_flops(config: Config, model: ModelConfig, shape: Shape, batch: int) -> float:
    """Returns XLA's FLOP count before compiling, of all arithmetic, not only matmuls.

    XLA counts the body of a loop once, so one block at any depth.
    """
    config = dataclasses.replace(config, model=model)
    placement = place(MeshConfig(), jax.devices()[:1])
    lowering = Lowering(trainer_of(config), placement)
    program = program_of(model, shape, batch)
    lowered = lowering.micro_step(program, placement.groups[0])
    costs = lowered.cost_analysis()
    assert costs is not None
    return costs["flops"]


@pytest.mark.parametrize(
    ("kind", "shape", "batch"),
    [
        ("wan", Shape(4, 32, 32), 1),
        ("wan", Shape(4, 32, 32), 3),
        ("wan", Shape(8, 64, 64), 1),
        ("mmdit", Shape(4, 32, 32), 1),
        ("mmdit", Shape(8, 64, 64), 1),
    ],
)
def test_agrees_with_xla_on_one_block(
    debug_config: Config, kind: str, shape: Shape, batch: int
):
    model = MODELS[kind]
    analytic = analytic_law(architecture_of(model))(batch, shape.tokens)
    # XLA counts up to 1% more: it adds softmax, norms, rotations and noise, but not the
    # unused gradients of latent, text and noise level.
    ratio = xla_flops(debug_config, model, shape, batch) / analytic
    assert 1.0 < ratio < 1.03


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("targets", [("q", "k", "v", "out"), ("mlp_in", "mlp_out")])
@pytest.mark.parametrize(("rank", "remat"), [(4, "none"), (32, "full")])
def test_agrees_with_xla_on_adapters(
    debug_config: Config, kind: str, targets: tuple[str, ...], rank: int, remat: Remat
):
    shape = Shape(4, 32, 32)
    model = dataclasses.replace(
        MODELS[kind], lora_rank=rank, lora_targets=targets, remat=remat
    )
    counted = xla_flops(debug_config, model, shape, 1)
    assert 0.99 < counted / analytic_cost(model)(program_of(model, shape)) < 1.03
    # Much less than training the model itself.
    whole = dataclasses.replace(model, lora_rank=0)
    assert counted < 0.9 * analytic_cost(whole)(program_of(whole, shape))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("policy", ["attention", "full"])
def test_agrees_with_xla_on_what_remat_computes_again(
    debug_config: Config, kind: str, policy: Remat
):
    shape = Shape(4, 32, 32)
    again = dataclasses.replace(MODELS[kind], remat=policy)
    expected, none = (
        analytic_law(architecture_of(again), remat=remat)(1, shape.tokens)
        for remat in (policy, "none")
    )
    more = xla_flops(debug_config, again, shape, 1)
    more -= xla_flops(debug_config, MODELS[kind], shape, 1)
    assert more / (expected - none) == pytest.approx(1.0, abs=0.05)


def test_xla_counts_a_loop_once(debug_config: Config):
    shape = Shape(4, 32, 32)
    one, two = (
        xla_flops(
            debug_config, dataclasses.replace(MODELS["wan"], depth=depth), shape, 1
        )
        for depth in (1, 2)
    )
    # If this fails, XLA counts loops correctly, and the tests above may use any depth.
    assert two == pytest.approx(one, rel=0.01)
