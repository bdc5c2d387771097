"""Tests of jaxload.models.families, also with a family outside of jaxload."""

import dataclasses
import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jaxload import config as config_lib
from jaxload import targets
from jaxload import train as train_command
from jaxload.balance.architecture import analytic_law
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.models import (
    MMDiT,
    WanConfig,
    WanTransformer,
    all_presets,
    families,
    family_of,
    preset,
    register,
    weights,
)
from jaxload.models.transformer_config import TransformerConfig
from jaxload.parallel.config import MeshConfig
from jaxload.planning.analytic_cost import analytic_cost, architecture_of
from jaxload.planning.footprint import UPDATE
from jaxload.planning.target_compiler import TargetCompiler, _handle
from jaxload.runs.start import check_start
from jaxload.runs.workdir import WorkDir
from jaxload.shapes.shape import Shape
from jaxload.targets import ResultCache, find_target
from jaxload.training.events import STEP, read_events
from tests.models.tiny import make
from tests.training.test_flops import SIZES, attention_at_once, xla_flops

ROOT = Path(__file__).parents[2]
MODULE = "tests.models.toy_family"
CONFIG_FILE = f"""
from pathlib import Path
import {MODULE}
from jaxload.config import load
def get_config():
    return load(Path({str(ROOT / "configs" / "debug.py")!r}))
"""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the families that a test registered, after the test."""
    built_in = {family.name: family for family in families._BUILT_IN}
    monkeypatch.setattr(families, "_registered", built_in)


@pytest.fixture
def toy(registry: None) -> ModuleType:
    module = importlib.import_module(MODULE)
    register(module.FAMILY)  # Importing the module registers only the first time.
    return module


def test_the_family_of_a_config_is_found():
    assert family_of(preset("wan-tiny")).model() is WanTransformer
    assert family_of(preset("mmdit-tiny")).model() is MMDiT


def test_a_config_of_no_family_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(WanConfig):
        """Not registered, although a parent is."""

    config = Mine(**dataclasses.asdict(preset("wan-tiny")))
    with pytest.raises(InputError, match=r"a WanConfig or a MMDiTConfig.*, got a Mine"):
        family_of(config)


@pytest.mark.parametrize("config", all_presets().values(), ids=all_presets())
def test_what_a_family_requires_to_train_are_fields_of_its_config(
    config: TransformerConfig,
):
    names = {field.name for field in dataclasses.fields(config)}
    assert family_of(config).required_to_train(config).keys() <= names


def test_a_name_of_another_family_is_refused(toy: ModuleType):
    other = dataclasses.replace(toy.FAMILY, presets={})
    with pytest.raises(InputError, match="'toy': expected a new name, got one that"):
        register(other)
    with pytest.raises(InputError, match=r"'other': expected presets.*got 'toy-tiny'"):
        register(dataclasses.replace(toy.FAMILY, name="other"))
    with pytest.raises(InputError, match=r"ToyConfig to have the field kind: Literal"):
        register(dataclasses.replace(other, name="other"))


def test_presets_and_fields_of_a_new_family(toy: ModuleType, debug_config: Config):
    assert list(all_presets())[-1] == "toy-tiny"
    config = config_lib.override(debug_config, "model=toy-tiny")
    assert config.model == preset("toy-tiny")
    config = config_lib.override(config, "model.depth=3")
    content = json.loads(json.dumps(config_lib.to_dict(config)))
    assert config_lib.from_dict(content) == config
    (depth,) = (f for f in config_lib.describe(config) if f.path == "model.depth")
    assert depth.meaning.startswith("Number of blocks.")


def test_a_family_that_is_not_registered_is_named(registry: None, debug_config: Config):
    content = config_lib.to_dict(debug_config)
    content["model"] = content["model"] | {"kind": "toy"}
    known = r" \| ".join(family.name for family in families.families())
    message = rf"model.kind='toy': expected {known}; .*JAXLOAD_FAMILIES=MODULE$"
    with pytest.raises(InputError, match=message):
        config_lib.from_dict(content)


def test_the_flops_of_a_new_family_agree_with_xla(
    toy: ModuleType, debug_config: Config, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(toy, "attention", attention_at_once)
    model, shape = toy.ToyConfig(**SIZES, depth=1), Shape(4, 32, 32)
    analytic = analytic_law(architecture_of(model))(1, shape.tokens)
    assert 1.0 < xla_flops(debug_config, model, shape, 1) / analytic < 1.03
    assert analytic_cost(model).laws["none"](1, shape.tokens) == analytic


def test_a_family_without_weight_files_says_so(toy: ModuleType, debug_config: Config):
    config = dataclasses.replace(
        debug_config,
        model=preset("toy-tiny"),
        train=dataclasses.replace(debug_config.train, weights="toy.safetensors"),
    )
    message = r"train\.weights: model family 'toy': expected tensor names for weight "
    with pytest.raises(InputError, match=message) as error:
        check_start(config, "weights")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"^model family 'toy': expected tensor names"):
        weights.save(make(preset("toy-tiny")), "toy.safetensors")


def test_results_for_targets_are_not_cached_without_the_code_in_the_key(
    toy: ModuleType,
    debug_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    messages = []

    def run_module(module, message, on_reply):
        messages.append(message)
        on_reply({"index": 0, "bytes": len(messages)})

    monkeypatch.setattr(targets, "run_module", run_module)
    for expected in (1, 2):
        compiler = TargetCompiler(
            dataclasses.replace(debug_config, model=preset("toy-tiny")),
            MeshConfig(replica=1),
            find_target("h100-80gb"),
            ResultCache(tmp_path),
        )
        found = compiler.footprints([UPDATE], on_done=lambda: None)
        assert found == {UPDATE: expected}
    # The child process registers the family by importing its module.
    assert messages[0]["family"] == MODULE
    with pytest.raises(InputError, match="family in no_such: expected a module that"):
        _handle(messages[0] | {"family": "no_such"}, lambda reply: None)


def test_the_page_on_adding_a_model_has_this_family():
    page = (ROOT / "docs" / "adding-a-model.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks[0] == (ROOT / "tests" / "models" / "toy_family.py").read_text()


@pytest.mark.slow
def test_the_config_file_of_the_page_names_the_family(tmp_path: Path):
    page = (ROOT / "docs" / "adding-a-model.md").read_text()
    family, config = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "toy_family.py").write_text(family)
    (tmp_path / "toy.py").write_text(config)
    command = [sys.executable, "-m", "jaxload.train", "--config", "toy.py", "--help"]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": "."},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "  model.kind (toy) = toy\n" in done.stdout


@pytest.fixture
def trained(
    registry: None, debug_config: Config, debug_manifest: Manifest, tmp_path: Path
) -> Path:
    """Trains the toy for three steps; its config file imports the family."""
    # As in a new process, importing the module registers the family.
    sys.modules.pop(MODULE, None)
    (tmp_path / "toy.py").write_text(CONFIG_FILE)
    fields = (
        "model=toy-tiny",
        f"data.path={debug_config.data.path}",
        "train.num_steps=3",
    )
    sets = [word for field in fields for word in ("--set", field)]
    workdir = tmp_path / "run"
    config = str(tmp_path / "toy.py")
    assert not train_command.main(
        ["--config", config, "--workdir", str(workdir), *sets]
    )
    return workdir


@pytest.mark.slow
def test_a_new_family_trains(trained: Path):
    steps = read_events(WorkDir(trained).metrics, STEP)
    assert len(steps) == 3
    assert all(math.isfinite(step.values["loss"]) for step in steps)
    config = json.loads((trained / "config.json").read_text())
    assert config["model"]["kind"] == "toy"
    plan = json.loads((trained / "plan.json").read_text())
    assert plan["cost_model"]["source"].startswith("analytic")
    # Commands without a config file import the modules that a variable names.
    export = [sys.executable, "-m", "jaxload.export", "--workdir", str(trained)]
    for value, message in (
        ("", r"model\.kind='toy': expected wan \| .*JAXLOAD_FAMILIES=MODULE"),
        ("no_such", r"JAXLOAD_FAMILIES=no_such: no_such cannot be imported"),
        (MODULE, r"model family 'toy': expected tensor names for weight files"),
    ):
        done = subprocess.run(
            export,
            env=os.environ | {"JAXLOAD_FAMILIES": value},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert re.search(message, done.stderr)
        assert len(done.stderr.splitlines()) == 1
