"""Tests of `python -m jaxload.plan` and jaxload.planning.planner."""

import dataclasses
import json
from pathlib import Path

import pytest
from PIL import Image

from jaxload import plan as plan_command
from jaxload import train as train_command
from jaxload.balance.regression import Timing, fit_costs
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.planning.plan import from_dict
from jaxload.planning.planner import check_plan, plan_run, token_limit


def test_plan_prints_and_writes(tmp_path: Path, root: Path, capsys):
    arguments = ["--config", str(root / "configs" / "debug.py"), "--replicas", "3"]
    arguments += ["--set", f"data.path={tmp_path / 'data'}"]
    assert plan_command.main([*arguments, "--out", str(tmp_path / "plan.json")]) == 0
    assert "Catalogue for 3 replica(s)" in capsys.readouterr().out
    assert json.loads((tmp_path / "plan.json").read_text())["num_replicas"] == 3
    with Image.open(tmp_path / "plan.png") as image:
        assert image.width > 600


@pytest.mark.parametrize("replicas", ["0", "-1"])
def test_refuses_a_number_of_replicas_that_is_none(
    tmp_path: Path, root: Path, replicas
):
    arguments = ["--config", str(root / "configs" / "debug.py"), "--replicas", replicas]
    arguments += ["--set", f"data.path={tmp_path / 'data'}"]
    with pytest.raises(InputError, match=f"{replicas} replicas: expected 1 or more"):
        plan_command.main(arguments)


def test_a_plan_is_for_one_data_set_and_one_number_of_replicas(
    debug_config: Config, debug_manifest: Manifest
):
    plan = plan_run(
        debug_config,
        debug_manifest,
        token_limit(debug_config.balance.max_tokens),
        num_replicas=2,
    )
    check_plan(plan, debug_manifest, num_replicas=2)
    with pytest.raises(InputError, match="planned for 2 replicas, and there are 4"):
        check_plan(plan, debug_manifest, num_replicas=4)
    other = dataclasses.replace(debug_manifest, fingerprint={"codec": "other"})
    with pytest.raises(InputError, match="the run was planned for another"):
        check_plan(plan, other, num_replicas=2)


@pytest.fixture
def manifest_file(tmp_path: Path) -> Path:
    """Clips of three lengths, images, and one row that makes no sense."""
    frames = [1, 17, 33, 81]
    rows = [f"s{i},{frames[i % 4]},480,832,{16 if i % 4 else 0}" for i in range(64)]
    path = tmp_path / "manifest.csv"
    path.write_text(
        "id,num_frames,height,width,fps\n" + "\n".join(rows) + "\nx,81,480,832,90000\n"
    )
    return path


def plan_for(root: Path, manifest: Path, *arguments: str) -> dict:
    out = manifest.with_name("plan.json")
    tokens = "balance.max_tokens=70000"
    fixed = ["--config", str(root / "configs" / "debug.py"), "--set", tokens]
    fixed += ["--manifest", str(manifest), "--out", str(out)]
    assert plan_command.main([*fixed, *arguments]) == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize("policy", ["lockstep", "mixed"])
def test_plans_for_a_manifest_of_media(root: Path, manifest_file: Path, policy, capsys):
    policies = ("--set", f"balance.policy={policy}", "--replicas", "4")
    content = plan_for(root, manifest_file, *policies)
    printed = capsys.readouterr().out
    assert "left out 1: bad metadata, such as row 64 (id 'x')" in printed
    assert "predicted idle share: equal-token" in printed
    plan = from_dict(content, name="plan")
    assert {bucket.shape.pixels for bucket in plan.buckets} == {
        (frames, 480, 832) for frames in (1, 17, 33, 81)
    }
    assert all(b.batch * b.shape.tokens <= 70_000 for b in plan.buckets)
    assert plan.kept_content == pytest.approx(1.0)
    assert plan.idle_shares["lockstep"] == 0.0
    assert bool(plan.patterns or plan.rest) == (policy == "mixed")


def test_costs_of_a_fit_are_used_and_named(root: Path, manifest_file: Path):
    timings = [
        Timing(batch=b, tokens=s, seconds=0.01 + 1e-6 * b * s + 1e-11 * b * s * s)
        for s in (1_560, 7_800, 14_040, 32_760)
        for b in (1, 2, 4)
    ]
    fit = manifest_file.with_name("fit.json")
    fit.write_text(json.dumps(fit_costs(timings, source="measured once").to_dict()))
    content = plan_for(root, manifest_file, "--costs", str(fit))
    assert content["sources"]["cost"] == "measured once"
    assert content["cost_model"]["unit"] == "s"
    longest = content["buckets"][-1]
    seconds = 0.01 + longest["batch"] * (1e-6 * 32_760 + 1e-11 * 32_760**2)
    assert longest["cost"] == pytest.approx(seconds, rel=1e-6)


@pytest.mark.slow
def test_bytes_are_compiled_and_confirmed(tmp_path: Path, root: Path):
    out = tmp_path / "plan.json"
    arguments = ["--config", str(root / "configs" / "debug.py"), "--out", str(out)]
    arguments += ["--set", f"data.path={tmp_path / 'data'}"]
    arguments += ["--set", "balance.max_bytes=1300000"]
    assert plan_command.main(arguments) == 0
    content = json.loads(out.read_text())
    assert "memory_analysis()" in content["sources"]["memory"]
    by_tokens = {"1x4x4": 16, "2x4x4": 8, "3x4x6": 3}
    for bucket in content["buckets"]:
        assert 500_000 < bucket["num_bytes"] <= 1_300_000
        assert bucket["batch"] <= by_tokens[bucket["shape"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--manifest", "none.csv"], r"none\.csv"),
        (["--costs", "none.json"], r"fit none\.json: cannot be read"),
        (["--out", "no/such/plan.json"], r"no/such/plan.json: cannot be written"),
        (["--set", "balance.max_tokens=1"], r"balance.max_tokens=1: not one sample of"),
        (["--replicas", "1000"], r"no shape has a sample for each of 1000 replicas"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path: Path, root: Path, arguments, message):
    fixed = ["--config", str(root / "configs" / "debug.py")]
    fixed += ["--set", f"data.path={tmp_path / 'data'}"]
    with pytest.raises(InputError, match=message) as error:
        plan_command.main([*fixed, *arguments])
    assert "\n" not in str(error.value)


def test_a_mixed_plan_is_not_trained_yet(tmp_path: Path, root: Path):
    arguments = ["--config", str(root / "configs" / "debug.py")]
    arguments += ["--workdir", str(tmp_path / "run")]
    arguments += ["--set", "balance.policy=mixed"]
    with pytest.raises(InputError, match=r"balance.policy=mixed: expected lockstep"):
        train_command.main(arguments)
