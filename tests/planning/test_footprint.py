"""Tests of jaxload.planning.footprint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.parallel.mesh import REPLICA_AXIS
from jaxload.planning.footprint import (
    check_capacity,
    confirm,
    measure_memory,
    program_bytes,
)
from jaxload.shapes.shape import Shape
from jaxload.training.programs import abstract_state, make_trainer


def test_counts_what_goes_in_and_out_and_a_donated_buffer_once():
    def compiled(**donate):
        add = jax.jit(lambda x, y: x + y, **donate)
        return add.lower(jnp.zeros(1_000), jnp.zeros(1_000)).compile()

    plain = program_bytes(compiled())
    assert plain >= 3 * 4_000
    assert program_bytes(compiled(donate_argnums=0)) <= plain - 4_000


@pytest.mark.slow
def test_memory_is_a_line_in_the_batch_size(debug_config: Config):
    mesh = Mesh(np.array(jax.devices()[:1]), (REPLICA_AXIS,))
    shape, done = Shape(5, 8, 8), []
    model = measure_memory(debug_config, [shape, shape], mesh, on_done=done.append)
    assert sorted(done) == ["5x8x8@1", "5x8x8@2"]
    line = model.lines[shape]
    assert line.source.startswith("compiled for ")
    # Parameters, two moments and the sums of the gradients are there for any batch.
    state = abstract_state(debug_config, make_trainer(debug_config), mesh)
    parameters = sum(leaf.size * 4 for leaf in jax.tree.leaves(state.params))
    assert 4 * parameters < line.fixed < 6 * parameters
    for batch in (3, 8):
        predicted, compiled = confirm(debug_config, shape, batch, mesh, line)
        assert predicted == model.bytes(shape, batch)
        # Measured: the line is up to 6.6% above, since one sample alone is computed
        # without its axis, in less memory; of larger models, 0.7%.
        assert 0.99 < predicted / compiled < 1.08


class Card:
    """A device that says how much of it JAX may take."""

    def __init__(self, stats: dict[str, int] | None):
        self._stats = stats

    def memory_stats(self) -> dict[str, int] | None:
        return self._stats

    def __str__(self) -> str:
        return "cuda:0"


def test_a_budget_above_what_jax_may_take_is_refused():
    card = Card({"bytes_limit": 63_700_000_000, "bytes_in_use": 0})
    check_capacity(63_700_000_000, [Card(None), Card({}), card])
    message = (
        "balance.max_bytes=80000000000: expected at most 63700000000, which JAX may "
        "take of cuda:0; .* XLA_CLIENT_MEM_FRACTION"
    )
    with pytest.raises(InputError, match=message):
        check_capacity(80_000_000_000, [Card(None), card])
    check_capacity(80_000_000_000, jax.devices())  # CPUs do not tell.
