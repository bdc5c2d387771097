"""Compares a run on one and on eight devices, and moves checkpoints between them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxload.training.events import STEP, read_events

pytestmark = pytest.mark.soak

FIRST, LAST = 2, 5
MESHES = {
    "fsdp8": ["mesh.fsdp=8"],
    "replica2-fsdp4": ["mesh.fsdp=4"],
    "fsdp4-tensor2": ["mesh.fsdp=4", "mesh.tensor=2"],
    "replica2-fsdp4-mixed": ["mesh.fsdp=4"],
}


def policy_of(name: str) -> str:
    return "mixed" if name.endswith("mixed") else "lockstep"


def run(num_devices: int, commands: list[list[str]]) -> None:
    """Runs commands one after another in a process with `num_devices` devices."""
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("mesh_runs.py")),
            f"{num_devices}",
        ],
        input=json.dumps(commands),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Starts runs on one device, and resumes them on one and on eight."""
    base = tmp_path_factory.mktemp("meshes")

    def arguments(policy: str) -> list[str]:
        sets = [
            f"data.path={base / 'data'}",
            "synthetic.num_samples=240",
            "synthetic.clips=1x32x32,5x32x32",
            "balance.max_tokens=128",
            "balance.batch_multiple=8",
            f"balance.policy={policy}",
            "train.accumulate=2",
            "sample.num_steps=1",
        ]
        config = ["--config", str(root / "configs" / "debug.py")]
        return [*config, *(part for text in sets for part in ("--set", text))]

    def train(policy: str, workdir: Path, num_steps: int, *more: str) -> list[str]:
        steps = ["--set", f"train.num_steps={num_steps}"]
        return ["train", *arguments(policy), "--workdir", str(workdir), *steps, *more]

    commands = []
    for policy in ("lockstep", "mixed"):
        plan = str(base / f"{policy}.json")
        commands += [
            ["plan", *arguments(policy), "--replicas", "2", "--out", plan],
            train(policy, base / policy, FIRST, "--plan", plan),
        ]
    run(1, commands)
    for name in MESHES:
        shutil.copytree(base / policy_of(name), base / name)
    run(1, [train(p, base / p, LAST, "--resume") for p in ("lockstep", "mixed")])
    run(
        8,
        [
            train(
                policy_of(name),
                base / name,
                LAST,
                "--resume",
                *(part for text in sets for part in ("--set", text)),
            )
            for name, sets in MESHES.items()
        ],
    )
    return base


def values(workdir: Path, name: str) -> list:
    events = read_events(workdir / "metrics.jsonl", STEP)
    assert [event.step for event in events] == list(range(1, LAST + 1))
    return [event.values[name] for event in events]


@pytest.mark.parametrize("name", MESHES)
def test_a_run_continues_on_another_mesh_with_the_losses_of_one_device(
    base: Path, name: str
):
    one, other = base / policy_of(name), base / name
    for same in ("bucket", "batch", "epoch"):
        assert values(other, same) == values(one, same)
    np.testing.assert_allclose(values(other, "loss"), values(one, "loss"), rtol=1e-5)
    np.testing.assert_allclose(
        values(other, "grad_norm"), values(one, "grad_norm"), rtol=1e-4
    )


def test_the_steps_that_are_compared_ran_elsewhere(base: Path):
    for name, sets in MESHES.items():
        config = json.loads((base / name / "config.json").read_text())
        wanted = {text.split(".")[1].split("=")[0]: text.split("=")[1] for text in sets}
        assert {k: str(config["mesh"][k]) for k in wanted} == wanted
    # The order of additions differs, so that some loss differs in its last digits.
    losses = {tuple(values(base / n, "loss")) for n in (*MESHES, "lockstep", "mixed")}
    assert len(losses) > 2


def test_replicas_of_a_mixed_run_have_programs_of_their_own(base: Path):
    plan = json.loads((base / "mixed" / "plan.json").read_text())
    assert plan["num_replicas"] == 2
    assert len(plan["patterns"]) + len(plan["rest"]) > 1
