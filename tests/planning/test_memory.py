"""Tests of jaxload.planning.memory, with a fake compiler."""

import dataclasses

import pytest

from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.form import Grid
from jaxload.balance.program import REMATS, Layout, Program, Remat
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.footprint import OTHERS, SAMPLE, UPDATE, add_queue
from jaxload.planning.memory import CompiledMemory, TokenMemory, remats_to_try
from jaxload.planning.plan import Plan
from jaxload.planning.planner import Planner
from jaxload.planning.samples import Samples
from jaxload.shapes.shape import Shape
from tests.balance.grid_samples import grid_bucket, shape_of
from tests.planning.fake_compiler import FIXED, FakeCompiler, line

# 4, 16, 32, 64 and 128 tokens.
SHAPES = tuple(Shape(f, 4, 4) for f in (1, 4, 8, 16, 32))
FORMS = tuple(map(Grid.of, SHAPES))


# Slower policies cost more per token, and there is no fixed cost.
COSTS = CostModel(
    laws={
        remat: CostLaw(fixed=0.0, per_sample=0.0, per_token=p, per_token_squared=0.01)
        for remat, p in zip(REMATS, (3.0, 3.5, 4.0), strict=True)
    },
    unit="FLOP",
    source="test",
)


def make_memory(
    compiler: FakeCompiler,
    budget: int,
    *,
    remats: tuple[Remat, ...] = ("none",),
    layout: Layout | None = None,
    config: BalanceConfig | None = None,
    costs: CostModel = COSTS,
) -> CompiledMemory:
    return CompiledMemory(
        compiler,
        costs,
        config or BalanceConfig(),
        budget=budget,
        origin=f"balance.max_bytes={budget}",
        layout=layout or Layout(),
        remats=remats,
        console=Console(quiet=True),
    )


def make_plan(
    config: Config, memory: CompiledMemory, shapes: tuple[Shape, ...]
) -> Plan:
    """Plans a thousand samples of each shape; batches fill the memory."""
    balance = BalanceConfig(rule="equal-token", form="grid")
    config = dataclasses.replace(config, balance=balance)
    counts = dict.fromkeys(shapes, 1_000)
    return Planner(
        config,
        Samples.of_counts(counts, may_cut=False, dataset="0123456789abcdef"),
        analytic_cost(config.model),
        memory,
        MeshConfig(replica=1),
        num_replicas=1,
        target="fake",
    ).plan()


# --- Number of compilations ---


@pytest.mark.parametrize("num_shapes", [1, 2, 5])
def test_at_most_three_programs_are_compiled_per_bucket(
    debug_config: Config, num_shapes: int
):
    compiler = FakeCompiler()
    shapes = SHAPES[:num_shapes]
    plan = make_plan(debug_config, make_memory(compiler, 10_000), shapes)
    assert [shape_of(bucket) for bucket in plan.buckets] == list(shapes)
    assert len(compiler.programs) <= 3 * len(plan.buckets)
    assert len(set(compiler.compiled)) == len(compiler.compiled)
    assert set(OTHERS) <= set(compiler.compiled)
    for bucket in plan.buckets:  # Batches are the largest, with confirmed bytes.
        assert bucket.num_bytes == line(bucket.program) <= 10_000
        assert line(bucket.program.resized(bucket.batch + 1)) > 10_000


def test_the_source_of_bytes_names_the_device(debug_config: Config):
    memory = make_memory(FakeCompiler(), 10_000)
    plan = make_plan(debug_config, memory, SHAPES[:1])
    assert plan.sources["memory"].startswith("10,000 bytes of each device")
    assert "compiled for fake" in plan.sources["memory"]
    assert memory.others == {UPDATE: 900, SAMPLE: 800}


@pytest.mark.parametrize("budget", [FIXED + 20, FIXED + 325, 10_000])
@pytest.mark.parametrize("num_shapes", [1, 2, 5])
def test_few_more_programs_are_compiled_to_choose_among_policies(
    debug_config: Config, num_shapes: int, budget: int
):
    compiler = FakeCompiler()
    shapes = SHAPES[:num_shapes]
    make_plan(debug_config, make_memory(compiler, budget, remats=REMATS), shapes)
    tried = {program.remat for program in compiler.programs}
    # Each policy compiles two batches of two lengths; each bucket compiles once.
    assert len(compiler.programs) <= min(2, num_shapes) * 2 * len(tried) + num_shapes
    assert len(set(compiler.compiled)) == len(compiler.compiled)


def test_a_policy_over_the_budget_is_compiled_once(debug_config: Config):
    compiler = FakeCompiler()
    memory = make_memory(compiler, FIXED + 10, remats=REMATS)
    (bucket,) = make_plan(debug_config, memory, SHAPES[:1]).buckets
    assert (bucket.program.remat, bucket.batch) == ("full", 1)
    assert [p.remat for p in compiler.programs] == [*REMATS, "full"]


def test_queued_micro_batches_are_counted_at_the_largest_size(debug_config: Config):
    """Prefetched micro-batches may be of any bucket, so the largest one counts."""

    class Compiler(FakeCompiler):
        def batch_bytes(self, program: Program) -> int:
            return program.batch

    plan = make_plan(debug_config, make_memory(Compiler(), 10_000), SHAPES)
    largest = max(bucket.batch for bucket in plan.buckets)
    for bucket in plan.buckets:
        assert bucket.num_bytes == line(bucket.program) + 2 * largest <= 10_000


def test_one_more_micro_batch_is_queued_behind_an_update():
    program = Program(form=Grid(1, 4, 4), batch=2)
    found = {program: 500, UPDATE: 400, SAMPLE: 300}
    assert add_queue(FakeCompiler(batch=7), found) == {
        program: 500 + 2 * 7,
        UPDATE: 400 + 3 * 7,
        SAMPLE: 300,
    }


# --- Remat ---


def test_auto_compares_costs_at_the_batch_that_a_policy_allows(debug_config: Config):
    """The samples of a larger batch share the fixed cost of a micro-batch."""
    budget = (
        FIXED + 700
    )  # Samples of 64 tokens: 1 with none, 2 with attention, 5 with full.
    laws = {r: dataclasses.replace(law, fixed=150.0) for r, law in COSTS.laws.items()}
    with_overhead = dataclasses.replace(COSTS, laws=laws)
    for costs, expected in ((COSTS, ("none", 1)), (with_overhead, ("full", 5))):
        memory = make_memory(FakeCompiler(), budget, remats=REMATS, costs=costs)
        (bucket,) = make_plan(debug_config, memory, SHAPES[3:4]).buckets
        assert (bucket.program.remat, bucket.batch) == expected


def test_auto_takes_the_fastest_policy_within_the_budget(debug_config: Config):
    compiler = FakeCompiler()
    memory = make_memory(compiler, FIXED + 325, remats=REMATS)
    plan = make_plan(debug_config, memory, SHAPES)
    assert {b.tokens: (b.program.remat, b.batch) for b in plan.buckets} == {
        4: ("none", 8),
        16: ("none", 2),
        32: ("none", 1),
        64: ("attention", 1),
        128: ("full", 1),
    }
    assert not any(bucket.over_budget for bucket in plan.buckets)
    # Slower policies are compiled only for shapes over the budget with a faster one.
    tried = {(program.remat, program.tokens) for program in compiler.programs}
    assert ("attention", 4) not in tried
    assert ("full", 64) not in tried
    assert len(set(compiler.compiled)) == len(compiler.compiled)


def test_a_given_policy_is_the_only_one_tried(debug_config: Config):
    assert remats_to_try("auto") == REMATS
    assert remats_to_try("attention") == ("attention",)
    compiler = FakeCompiler()
    make_plan(
        debug_config,
        make_memory(compiler, 10_000, remats=remats_to_try("attention")),
        SHAPES,
    )
    assert {program.remat for program in compiler.programs} == {"attention"}


def test_a_shape_too_large_for_all_is_over_budget(debug_config: Config):
    memory = make_memory(FakeCompiler(), FIXED + 200, remats=REMATS)
    *others, longest = make_plan(debug_config, memory, SHAPES).buckets
    assert (longest.batch, longest.program.remat) == (1, "full")
    assert longest.over_budget
    assert longest.num_bytes == FIXED + 2 * 128
    assert not any(bucket.over_budget for bucket in others)


def test_a_budget_below_every_shape_is_one_line(debug_config: Config):
    memory = make_memory(FakeCompiler(), FIXED + 1, remats=REMATS)
    message = r"memory of a device \(.*\): not one sample of 1x4x4, 4 tokens, fits"
    with pytest.raises(InputError, match=message) as error:
        make_plan(debug_config, memory, SHAPES)
    assert "\n" not in str(error.value)


# --- Programs that are larger than regressed ---


def test_a_batch_over_the_budget_is_lowered(debug_config: Config):
    def bends(program: Program) -> int:
        return line(program) + 80 * max(0, program.batch - 12)

    compiler = FakeCompiler(bends)
    memory = make_memory(compiler, FIXED + 800)
    (bucket,) = make_plan(debug_config, memory, SHAPES[:1]).buckets
    assert bucket.num_bytes == bends(bucket.program) <= FIXED + 800
    assert 6 < bucket.batch < 20
    assert not bucket.over_budget
    assert len(compiler.programs) <= 5


def test_one_unit_over_the_budget_gets_the_next_policy(debug_config: Config):
    def surprising(program: Program) -> int:
        """Adds bytes to the middle length, which the regression does not probe."""
        more = 5_000 if (program.tokens, program.remat) == (32, "none") else 0
        return line(program) + more

    memory = make_memory(FakeCompiler(surprising), FIXED + 1_285, remats=REMATS)
    plan = make_plan(debug_config, memory, (SHAPES[0], SHAPES[2], SHAPES[4]))
    assert {b.tokens: (b.program.remat, b.batch) for b in plan.buckets} == {
        4: ("none", 32),
        32: ("attention", 8),  # Not limited to the batch of 1 of its first policy.
        128: ("none", 1),
    }
    assert not any(bucket.over_budget for bucket in plan.buckets)


def test_one_unit_too_large_for_the_last_policy_is_flagged(debug_config: Config):
    def surprising(program: Program) -> int:
        return line(program) + 5_000 * (program.tokens == 32)

    memory = make_memory(FakeCompiler(surprising), FIXED + 1_285)
    plan = make_plan(debug_config, memory, (SHAPES[0], SHAPES[2], SHAPES[4]))
    assert [b.over_budget for b in plan.buckets] == [False, True, False]
    assert plan.buckets[1].batch == 1


def test_memory_that_never_converges_is_one_line(debug_config: Config):
    def never(program: Program) -> int:
        return line(program) if program.batch <= 2 else FIXED + 801

    memory = make_memory(FakeCompiler(never), FIXED + 800)
    message = "no batch sizes found within 1,800 bytes of each device.* in 4 rounds"
    with pytest.raises(InputError, match=message) as error:
        make_plan(debug_config, memory, SHAPES[:1])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", OTHERS)
def test_update_or_sampler_too_large_is_one_line(name: str):
    others = {UPDATE: 900, SAMPLE: 800} | {name: 12_345}
    compiler = FakeCompiler(others=others)
    memory = make_memory(compiler, 10_000)
    message = (
        f"balance.max_bytes=10000: the program {name!r} needs 12,345 bytes of each "
        "device; raise balance.max_bytes, shard the model over more devices"
    )
    with pytest.raises(InputError, match=message) as error:
        memory.prepare(FORMS)
    assert "\n" not in str(error.value)
    assert compiler.programs == []  # No micro-step is compiled.


# --- Units ---


def test_batches_are_multiples_of_devices_and_batch_multiple(debug_config: Config):
    layout = Layout(batch=2)
    config = BalanceConfig(batch_multiple=3, max_tokens=40)
    memory = make_memory(FakeCompiler(), FIXED + 800, layout=layout, config=config)
    memory.prepare(FORMS[:2])
    limit = memory.limit(FORMS[0])
    # A device holds 20 samples of 4 tokens by bytes, and 10 by tokens; a unit is 6.
    assert (limit.unit, limit.program.batch, limit.max_units) == (6, 18, 3)
    assert limit.program.layout == layout
    limit = memory.limit(FORMS[1])  # A device holds 2 of the 3 samples of a unit.
    assert (limit.within_budget, limit.program.batch) == (False, 6)


def test_the_token_budget_is_per_device():
    layout = Layout(batch=2)
    memory = TokenMemory(max_tokens=40, layout=layout, remat="full", multiple=4)
    limit = memory.limit(FORMS[0])
    assert (limit.within_budget, limit.unit) == (True, 4)
    assert limit.program == Program(
        form=Grid(1, 4, 4), batch=20, layout=layout, remat="full"
    )
    assert not memory.limit(FORMS[3]).within_budget
    bucket = grid_bucket(limit.program, 20)
    assert memory.confirm([bucket]) == (bucket,)
    assert memory.source == "40 tokens in a micro-batch (balance.max_tokens)"
