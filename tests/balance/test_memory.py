"""Tests of jaxload.balance.memory."""

import dataclasses
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxload.balance.form import Grid, Length
from jaxload.balance.memory import (
    Limit,
    MemoryLaw,
    probe_forms,
    regress_memory,
)
from jaxload.balance.program import Layout, Program, Remat
from jaxload.errors import InputError

LAW = MemoryLaw(fixed=100.0, per_sample=3.0, per_token=0.25)
LENGTHS = (16, 64)  # 7 and 19 bytes per sample.


def program(
    tokens: int, batch: int, *, layout: Layout | None = None, remat: Remat = "none"
) -> Program:
    return Program(
        form=Grid(tokens, 2, 2), batch=batch, layout=layout or Layout(), remat=remat
    )


def compiled(law: MemoryLaw, programs: list[Program]) -> dict[Program, int]:
    """Returns the bytes that a compiler would report if the law were exact."""
    return {program: round(law(program)) for program in programs}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**11),
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.sampled_from([1, 2, 8]),
)
def test_an_exact_law_is_recovered(fixed, per_sample, per_token, devices):
    law = MemoryLaw(
        fixed=float(fixed), per_sample=float(per_sample), per_token=float(per_token)
    )
    layout = Layout(batch=devices)
    probes = [
        program(tokens, n * devices, layout=layout)
        for tokens in (64, 4_096)
        for n in (1, 2)
    ]
    found = regress_memory(compiled(law, probes))
    # Programs that were not compiled: other lengths, larger batches.
    for tokens, n in ((64, 1), (64, 50), (1_000, 7), (4_096, 3), (10_000, 2)):
        asked = program(tokens, n * devices, layout=layout)
        assert found(asked) == pytest.approx(law(asked), rel=1e-6)


def test_the_coefficients_by_hand():
    probes = [program(tokens, n) for tokens in LENGTHS for n in (1, 2)]
    found = regress_memory(compiled(LAW, probes))
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(LAW))


def test_devices_count_their_own_samples():
    # Two devices with one sample each, then with three: 107 and 121 bytes per device.
    layout = Layout(batch=2)
    found = regress_memory(
        {program(16, 2, layout=layout): 107, program(16, 6, layout=layout): 121}
    )
    assert found(program(16, 10, layout=layout)) == pytest.approx(135)
    assert found(program(16, 5)) == pytest.approx(135)


def test_one_length_determines_the_bytes_of_that_length():
    found = regress_memory({program(16, 1): 107, program(16, 3): 121})
    assert found.fixed == pytest.approx(100)
    assert found.sample(16) == pytest.approx(7)
    for batch in range(1, 9):
        assert found(program(16, batch)) == pytest.approx(100 + 7 * batch)


def test_no_coefficient_is_negative():
    # Longer samples take less, so unconstrained coefficients would be negative.
    found = regress_memory(
        {
            program(16, 1): 200,
            program(16, 2): 300,
            program(64, 1): 150,
            program(64, 2): 200,
        }
    )
    assert min(dataclasses.astuple(found)) >= 0
    assert found.sample(64) > 0


@pytest.mark.parametrize("second", [107, 90], ids=["flat", "falling"])
@pytest.mark.parametrize("lengths", [LENGTHS[:1], LENGTHS], ids=["one", "two"])
def test_memory_that_does_not_grow_is_refused(second, lengths):
    measured = {
        program(tokens, batch): num_bytes
        for tokens in lengths
        for batch, num_bytes in ((1, 107), (2, second))
    }
    with pytest.raises(InputError, match=r"does not grow with samples: .* further"):
        regress_memory(measured)


@pytest.mark.parametrize(
    "programs",
    [
        [],
        [program(16, 2)],
        [program(16, 2), program(64, 2)],
        # Other batches, but the same number of samples per device.
        [program(16, 2), program(16, 4, layout=Layout(batch=2))],
    ],
    ids=["none", "one", "two-lengths", "two-layouts"],
)
def test_one_batch_size_is_refused(programs):
    with pytest.raises(InputError, match=r"expected two batch sizes or more; compile"):
        regress_memory(compiled(LAW, programs))


def test_one_sample_more_than_max_samples_exceeds_the_budget():
    for tokens in LENGTHS:
        for budget in range(300):
            n = LAW.max_samples(tokens, budget)
            assert n == 0 or LAW(program(tokens, n)) <= budget
            assert LAW(program(tokens, n + 1)) > budget
    assert LAW.max_samples(16, 106) == 0
    assert LAW.max_samples(16, 107) == 1


def test_the_shortest_and_longest_forms_are_probed():
    forms = [Length(12), Grid(1, 4, 4), Grid(9, 4, 4), Length(20)]
    assert probe_forms(forms) == [Grid(1, 4, 4), Grid(9, 4, 4)]
    assert probe_forms(forms[:1]) == forms[:1]


def test_one_token_more_than_max_tokens_exceeds_the_budget():
    for samples in (1, 2, 5):
        for budget in range(90, 400):
            tokens = LAW.max_tokens(samples, budget)
            assert tokens == 0 or 100 + samples * LAW.sample(tokens) <= budget
            assert 100 + samples * LAW.sample(tokens + 1) > budget
    free = dataclasses.replace(LAW, per_token=0.0)
    assert free.max_tokens(1, 200) == sys.maxsize


def test_a_limit_counts_in_units():
    layout = Layout(batch=2)
    limit = Limit(program=program(16, 12, layout=layout), within_budget=True, unit=4)
    assert (limit.max_units, limit.samples_per_device) == (3, 2)
    too_large = Limit(
        program=program(16, 4, layout=layout), within_budget=False, unit=4
    )
    assert (too_large.max_units, too_large.samples_per_device) == (0, 2)
