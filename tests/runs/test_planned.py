"""Tests of jaxload.runs.planned: fields of a config that a plan decides."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxload import plan as plan_command
from jaxload import train as train_command
from jaxload.config import Config, override_all
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.planning.plan import Plan, to_json
from jaxload.runs.planned import follow_plan
from jaxload.shapes.shape import Shape


@pytest.fixture
def plan_file(plan_of: Callable[..., Plan], tmp_path: Path) -> Path:
    """Writes a mixed plan with two micro-batches per step and 96 tokens in memory."""
    counts = {Shape(1, 8, 8): 40, Shape(5, 8, 8): 20}
    plan = plan_of(counts, policy="mixed", accumulate=2, max_tokens=96)
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan))
    return path


def test_a_run_has_the_fields_that_its_plan_was_made_with(
    debug_config: Config, plan_file: Path
):
    out = io.StringIO()
    config = follow_plan(debug_config, plan_file, [], Console(file=out, width=300))
    assert config.train.accumulate == 2
    assert (config.balance.policy, config.balance.max_tokens) == ("mixed", 96)
    (line,) = out.getvalue().splitlines()
    assert line.startswith(f"from plan {plan_file}: ")
    for assignment in ("balance.policy=mixed", "train.accumulate=2"):
        assert assignment in line
    again = follow_plan(config, plan_file, [], Console(file=out))
    assert again == config
    assert len(out.getvalue().splitlines()) == 1


def test_what_contradicts_the_plan_is_refused(debug_config: Config, plan_file: Path):
    agrees = ["balance.policy=mixed", "train.num_steps=7"]
    config = override_all(debug_config, agrees)
    quiet = Console(quiet=True)
    assert follow_plan(config, plan_file, agrees, quiet).train.num_steps == 7
    assignments = ["balance.max_tokens=64"]
    message = r"--set balance.max_tokens=64: plan .*plan.json was made with 96; plan ag"
    with pytest.raises(InputError, match=message) as error:
        follow_plan(debug_config, plan_file, assignments, quiet)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--resume"],
            r"no run to resume in .*nope: expected config.json there.*--workdir",
        ),
        (["--dry-run", "--resume"], r"--dry-run --resume: expected one of them, got b"),
        (
            ["--dry-run", "--set", "balance.costs=measure"],
            r"balance.costs=measure: a dry run .*; leave out --dry-run, or use",
        ),
        (["--devices", "2"], r"--devices 2: only a dry run .*; add --dry-run"),
        (
            ["--dry-run", "--set", "model.num_heads=1", "--set", "mesh.tensor=2"],
            r"mesh.tensor=2: expected a divisor of model.num_heads=1; .*mesh.tensor=1$",
        ),
    ],
)
def test_commands_that_cannot_be_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    arguments: list[str],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    if arguments != ["--resume"]:
        arguments = ["--config", str(root / "configs" / "debug.py"), *arguments]
    with pytest.raises(InputError, match=message) as error:
        train_command.main(["--workdir", str(tmp_path / "nope"), *arguments])
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_plan_is_not_written_over_by_its_figure(tmp_path: Path):
    with pytest.raises(InputError, match=r"plan\.png: expected a file that ends in"):
        plan_command.main(["--out", str(tmp_path / "plan.png")])
