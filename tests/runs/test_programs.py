"""Tests of jaxload.runs.programs, with a fake compiler."""

import dataclasses
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import pytest
from jax.stages import Compiled

from jaxload.balance.program import Program
from jaxload.config import Config
from jaxload.console import Console
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import Group, place
from jaxload.planning.footprint import SAMPLE, UPDATE, LocalCompiler, Request
from jaxload.planning.plan import Plan
from jaxload.runs import programs as programs_lib
from jaxload.runs.programs import RunPrograms, compile_run
from jaxload.runs.setup import trainer_of
from jaxload.shapes.shape import Shape
from jaxload.training.lowering import Lowering

COMPILED = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"
INIT = "init"
FIRST, SECOND = 0, 1

Name = str | tuple[int, Program]
"""Name of a program; micro-steps are pairs of group and program."""


class FakeCompiled(Compiled):
    """Fake executable with a name."""

    def __init__(self, name: Name):
        self.name = name


class FakeLowering(Lowering):
    """Lowers programs to their names, for two groups."""

    def init(self, origin: str) -> Any:
        return INIT

    def micro_step(self, program: Program, group: Group) -> Any:
        return group.index, program


class FakeCompiler(LocalCompiler):
    """Fake compiler that has compiled some programs for the first group."""

    def __init__(self, kept: Iterable[Request]):
        self.compiled = {request: FakeCompiled(name_of(request)) for request in kept}

    def lower(self, request: Request) -> Any:
        return name_of(request)


def name_of(request: Request) -> Name:
    return (FIRST, request) if isinstance(request, Program) else request


def name_in(compiled: Compiled) -> Name:
    assert isinstance(compiled, FakeCompiled)
    return compiled.name


def is_for(name: Name, group: int) -> bool:
    """Returns whether a program is a micro-step of a group."""
    return isinstance(name, tuple) and name[0] == group


@dataclasses.dataclass
class Compilations:
    """Replaces `compile_ahead`, and records the order of compilation."""

    events: list[tuple[str, Name]] = dataclasses.field(default_factory=list)

    def __call__(
        self,
        lowerings: Mapping[Any, Callable[[], Any]],
        *,
        on_done: Callable[[Any], None],
    ) -> dict[Any, FakeCompiled]:
        """Starts all programs before it finishes any, as threads might."""
        names = {key: lower() for key, lower in lowerings.items()}
        self.events += [("begin", name) for name in names.values()]
        for key, name in names.items():
            jax.monitoring.record_event_duration_secs(COMPILED, 1.0)
            if is_for(name, SECOND):  # Hits the cache of the first group, as on GPUs.
                jax.monitoring.record_event(CACHE_HIT)
            self.events.append(("end", name))
            on_done(key)
        return {key: FakeCompiled(name) for key, name in names.items()}

    def moments(self, event: str, group: int) -> list[int]:
        """Returns the event indices at which micro-steps of a group began or ended."""
        return [
            moment
            for moment, (what, name) in enumerate(self.events)
            if what == event and is_for(name, group)
        ]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    compilations = Compilations()
    monkeypatch.setattr(programs_lib, "compile_ahead", compilations)
    return compilations


@pytest.fixture(scope="module")
def plan(plan_of: Callable[..., Plan]) -> Plan:
    """Returns a plan of two programs."""
    return plan_of({Shape(1, 4, 4): 60, Shape(2, 4, 4): 60}, num_replicas=2)


def run(
    config: Config, plan: Plan, compiler: FakeCompiler
) -> tuple[RunPrograms, list[str]]:
    """Returns the programs of a run on two groups, and the lines that it prints."""
    placement = place(MeshConfig(replica=2), jax.devices()[:2])
    out = io.StringIO()
    found = compile_run(
        compiler,
        FakeLowering(trainer_of(config), placement),
        plan,
        origin="noise",
        console=Console(file=out, width=200),
    )
    return found, out.getvalue().splitlines()


def test_other_groups_begin_when_the_first_has_every_micro_step(
    debug_config: Config, plan: Plan, compilations: Compilations
):
    found, lines = run(debug_config, plan, FakeCompiler([]))
    programs = [bucket.program for bucket in plan.buckets]
    ended = compilations.moments("end", FIRST)
    begun = compilations.moments("begin", SECOND)
    assert len(programs) == len(ended) == len(begun) == 2
    assert max(ended) < min(begun)
    others = [found.init, found.update, found.sample]
    assert [name_in(program) for program in others] == [INIT, UPDATE, SAMPLE]
    names = {key: name_in(program) for key, program in found.micro_steps.items()}
    expected = [(group, program) for group in (FIRST, SECOND) for program in programs]
    assert names == {name: name for name in expected}
    assert lines[0].startswith("compiling: 7/7 in ")
    assert lines[1:] == [
        "programs: 5 compiled, 2 loaded from the cache, 0 kept from planning"
    ]


def test_programs_of_planning_are_kept(
    debug_config: Config, plan: Plan, compilations: Compilations
):
    one, other = (bucket.program for bucket in plan.buckets)
    compiler = FakeCompiler([UPDATE, one])
    planned = dict(compiler.compiled)
    found, lines = run(debug_config, plan, compiler)
    begun = [name for event, name in compilations.events if event == "begin"]
    new = [INIT, SAMPLE, (FIRST, other), (SECOND, one), (SECOND, other)]
    assert Counter(begun) == Counter(new)
    assert found.update is compiler.compiled[UPDATE] is planned[UPDATE]
    assert found.micro_steps[FIRST, one] is compiler.compiled[one] is planned[one]
    assert name_in(compiler.compiled[other]) == (FIRST, other)
    assert lines[-1] == (
        "programs: 3 compiled, 2 loaded from the cache, 2 kept from planning"
    )
