"""Tests that a target compiler's results are cached by everything they depend on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import pytest
from jax.stages import Compiled, Lowered

from jaxload import targets
from jaxload.balance.form import Grid
from jaxload.balance.program import Layout, Program
from jaxload.config import Config, override_all
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.footprint import UPDATE, Request
from jaxload.planning.target_compiler import TargetCompiler, _compile
from jaxload.targets import ResultCache

MESH = MeshConfig(replica=1, fsdp=2)
PROGRAM = Program(form=Grid(1, 4, 4), batch=2, layout=Layout(batch=2))
REQUESTS: list[Request] = [UPDATE, PROGRAM]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the child process by immediate replies; returns the requests."""
    messages: list[dict[str, Any]] = []

    def run_module(
        module: str, message: dict[str, Any], on_reply: Callable[[dict], None]
    ) -> None:
        assert module == "jaxload.planning.target_compiler"
        messages.append(message)
        for index in range(len(message["requests"])):
            on_reply({"index": index, "bytes": 1_000 * len(messages) + index})

    monkeypatch.setattr(targets, "run_module", run_module)
    return messages


class Case:
    """A run's target compiler with a cache directory."""

    def __init__(self, config: Config, directory: Path, sent: list[dict[str, Any]]):
        self._config = config
        self._directory = directory
        self._sent = sent

    def ask(
        self,
        requests: list[Request],
        *assignments: str,
        mesh: MeshConfig = MESH,
        target: str = "h100-80gb",
    ) -> tuple[dict[Request, int], int]:
        """Returns the bytes, and the number of programs that were compiled."""
        compiler = TargetCompiler(
            override_all(self._config, assignments),
            mesh,
            targets.find_target(target),
            ResultCache(self._directory),
        )
        done: list[None] = []
        num_sent = len(self._sent)
        found = compiler.footprints(requests, on_done=lambda: done.append(None))
        assert len(done) == len(requests)
        assert compiler.device_kind == target
        return found, sum(len(m["requests"]) for m in self._sent[num_sent:])


@pytest.fixture
def case(debug_config: Config, tmp_path: Path, sent: list[dict[str, Any]]) -> Case:
    return Case(debug_config, tmp_path, sent)


def test_a_second_run_compiles_nothing(case: Case, sent: list[dict[str, Any]]):
    first, num_compiled = case.ask(REQUESTS)
    assert (first, num_compiled) == ({UPDATE: 1_000, PROGRAM: 1_001}, 2)
    assert sent[0]["requests"] == [UPDATE, PROGRAM.to_dict()]
    assert sent[0]["mesh"] == {"replica": 1, "fsdp": 2, "tensor": 1}
    assert case.ask(REQUESTS) == (first, 0)
    assert len(sent) == 1


def test_only_another_program_is_compiled(case: Case, sent: list[dict[str, Any]]):
    case.ask(REQUESTS)
    more = PROGRAM.resized(4)
    found, num_compiled = case.ask([*REQUESTS, more])
    assert (found, num_compiled) == ({UPDATE: 1_000, PROGRAM: 1_001, more: 2_000}, 1)
    assert sent[1]["requests"] == [more.to_dict()]


@pytest.mark.parametrize(
    "assignment",
    ["model.depth=3", "model.remat=full", "optimizer.beta1=0.8", "sample.shape=1x4x4"],
)
def test_another_model_is_compiled_again(
    case: Case, sent: list[dict[str, Any]], assignment: str
):
    case.ask(REQUESTS)
    _, num_compiled = case.ask(REQUESTS, assignment)
    assert (num_compiled, len(sent)) == (2, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"target": "a100-80gb"},
        {"mesh": MeshConfig(replica=2, fsdp=2)},
        {"mesh": MeshConfig(replica=1, fsdp=2, tensor=2)},
    ],
)
def test_other_devices_are_compiled_for_again(
    case: Case, sent: list[dict[str, Any]], other: dict[str, Any]
):
    case.ask(REQUESTS)
    _, num_compiled = case.ask(REQUESTS, **other)
    assert num_compiled == 2
    assert sent[1]["target"] == other.get("target", "h100-80gb")


def test_changed_code_is_compiled_again(
    case: Case, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    case.ask(REQUESTS)
    monkeypatch.setattr(targets, "source_digest", lambda: "0" * 64)
    assert case.ask(REQUESTS)[1] == 2


def test_fields_that_programs_ignore_do_not_compile_again(
    case: Case, sent: list[dict[str, Any]]
):
    case.ask(REQUESTS)
    assert case.ask(REQUESTS, "data.path=elsewhere", "train.num_steps=9")[1] == 0


def test_results_before_a_failure_are_kept(
    case: Case, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    def fails(
        module: str, message: dict[str, Any], on_reply: Callable[[dict], None]
    ) -> None:
        on_reply({"index": 0, "bytes": 7})
        raise InputError("no plugin")

    with monkeypatch.context() as patch:
        patch.setattr(targets, "run_module", fails)
        with pytest.raises(InputError, match="no plugin"):
            case.ask(REQUESTS)
    assert case.ask(REQUESTS) == ({UPDATE: 7, PROGRAM: 1_000}, 1)


# --- In the child ---


def test_matmuls_without_tile_sizes_are_compiled_for_cublas():
    error = jax.errors.JaxRuntimeError("INTERNAL: Couldn't find output tile sizes that")
    lowered, compiled = mock.Mock(spec=Lowered), mock.Mock(spec=Compiled)
    lowered.compile.side_effect = [error, compiled]
    assert _compile(lowered) is compiled
    options = {"xla_gpu_enable_triton_gemm": False}
    assert lowered.compile.mock_calls == [
        mock.call(),
        mock.call(compiler_options=options),
    ]


def test_other_errors_of_the_compiler_are_raised():
    lowered = mock.Mock(spec=Lowered)
    lowered.compile.side_effect = jax.errors.JaxRuntimeError("INTERNAL: else")
    with pytest.raises(jax.errors.JaxRuntimeError, match="else"):
        _compile(lowered)
    assert lowered.compile.call_count == 1
