"""Tests of `python -m jaxload.plan` and jaxload.planning."""

import dataclasses
import json
from pathlib import Path

import pytest

from jaxload import plan as plan_command
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.planning import check_plan, plan_run


def test_plan_prints_and_writes(tmp_path: Path, root: Path, capsys):
    arguments = ["--config", str(root / "configs" / "debug.py"), "--replicas", "3"]
    arguments += ["--set", f"data.path={tmp_path / 'data'}"]
    assert plan_command.main([*arguments, "--out", str(tmp_path / "plan.json")]) == 0
    assert "Catalogue for 3 replica(s)" in capsys.readouterr().out
    assert json.loads((tmp_path / "plan.json").read_text())["num_replicas"] == 3


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
    plan = plan_run(debug_config, debug_manifest, num_replicas=2)
    check_plan(plan, debug_manifest, num_replicas=2)
    with pytest.raises(InputError, match="planned for 2 replicas, and there are 4"):
        check_plan(plan, debug_manifest, num_replicas=4)
    other = dataclasses.replace(debug_manifest, fingerprint={"codec": "other"})
    with pytest.raises(InputError, match="the run was planned for another"):
        check_plan(plan, other, num_replicas=2)
