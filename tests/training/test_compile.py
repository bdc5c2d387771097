"""Tests of jaxload.training.compile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxload.training.compile import CompileCounter, compile_ahead


def lowering(size: int):
    return lambda: jax.jit(lambda x: x * 2).lower(jnp.zeros(size))


def test_compiles_each_program_once_and_says_so():
    done: list[str] = []
    named = {str(size): lowering(size) for size in (1, 2, 3)}
    compiled = compile_ahead(named, on_done=done.append)
    assert sorted(done) == ["1", "2", "3"]
    np.testing.assert_array_equal(compiled["2"](jnp.ones(2)), [2, 2])


def test_a_program_does_not_take_another_shape():
    compiled = compile_ahead({"a": lowering(4)}, on_done=lambda _: None)
    with pytest.raises(TypeError, match=r"compiled with float32\[4\]"):
        compiled["a"](jnp.ones(5))


def test_an_error_of_a_thread_is_raised():
    def fail():
        raise ValueError("cannot lower")

    with pytest.raises(ValueError, match="cannot lower"):
        compile_ahead({"a": fail}, on_done=lambda _: None)


def test_counter_sees_a_compile_and_no_more_after_it_is_closed():
    x = jnp.arange(7.0)
    with CompileCounter() as counter:
        jax.jit(lambda x: jnp.sin(x) * 3.25)(x)
        first = counter.count
    jax.jit(lambda x: jnp.cos(x) * 3.5)(x)
    assert first >= 1
    assert counter.count == first


def test_counter_ignores_what_is_compiled_already():
    double = jax.jit(lambda x: x * 2)
    x = jnp.arange(3.0)
    double(x)
    with CompileCounter() as counter:
        double(x)
    assert counter.count == 0
