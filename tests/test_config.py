"""Tests of jaxload.config, and of every file in configs/."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds(path: Path):
    config = config_lib.load(path)
    assert config_lib.from_dict(json.loads(json.dumps(config_lib.to_dict(config)))) == (
        config
    )
    assert f"--config configs/{path.name}" in path.read_text(), "no command in it"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_field_is_explained(path: Path):
    rows = config_lib.describe(config_lib.load(path))
    assert len(rows) > 30
    for row in rows:
        assert row.type, row
        assert row.meaning.endswith("."), row


def test_the_demo_has_at_least_eight_sizes():
    demo = config_lib.load(CONFIGS[0].with_name("demo.py"))
    assert demo.synthetic is not None
    assert len(set(demo.synthetic.clips)) >= 8
    assert any(clip.startswith("1x") for clip in demo.synthetic.clips)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("train.num_steps=1_000", 1_000),
        ("optimizer.learning_rate=1e-4", 1e-4),
        ("optimizer.weight_decay=0", 0.0),
        ("balance.rule=dual", "dual"),
        ("synthetic.clips=1x16x16,5x16x32", ("1x16x16", "5x16x32")),
        ("sample.caption=a=b", "a=b"),
    ],
)
def test_override_reads_the_fields_type(debug_config: Config, assignment, expected):
    config = config_lib.override(debug_config, assignment)
    section, field = assignment.split("=")[0].split(".")
    value = getattr(getattr(config, section), field)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.num_step=3", r"no field 'train.num_step': TrainConfig has num_steps, "),
        ("train.num_step=3", r"did you mean 'num_steps'\?"),
        ("trian.num_steps=3", r"no field 'trian': Config has .*did you mean 'train'\?"),
        ("train.num_steps=many", r"train.num_steps=many: expected int"),
        ("train.num_steps=1.5", r"train.num_steps=1.5: expected int"),
        ("optimizer.learning_rate=nan", r"learning_rate=nan: expected float"),
        ("sample.seed=3000000000", r"sample.seed=3000000000: expected 0 to"),
        ("sample.shape=2x4", r"sample.shape: shape '2x4': expected FxHxW"),
        ("train.num_steps=0", r"train.num_steps=0: expected 1 or more"),
        ("balance.rule=best", r"expected equal-token \| dual \| dual-cost"),
        ("train.num_steps", r"expected section.field=value"),
        ("num_steps=3", r"expected section.field=value"),
    ],
)
def test_override_explains_what_is_wrong(debug_config: Config, assignment, message):
    with pytest.raises(InputError, match=message):
        config_lib.override(debug_config, assignment)


def test_override_of_an_absent_section(debug_config: Config):
    config = dataclasses.replace(debug_config, synthetic=None)
    with pytest.raises(InputError, match="this config has no section 'synthetic'"):
        config_lib.override(config, "synthetic.seed=1")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n", r"expected a function get_config\(\)"),
        ("get_config = 3\n", r"expected a function get_config\(\)"),
        ("def get_config(:\n", r"mine.py: line 1: invalid syntax; correct the file"),
        ("def get_config():\n    return 3\n", r"to return a Config, got int"),
    ],
)
def test_load_explains_what_is_wrong(tmp_path: Path, source, message):
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(InputError, match=message):
        config_lib.load(path)


BAD_SECTIONS = {
    "TrainConfig(num_stepz=3)": "no field 'num_stepz': TrainConfig has num_steps,",
    "TrainConfig(num_step=3)": "did you mean 'num_steps'?",
    "TrainConfig(num_steps='3')": "a field has the wrong type: '<' not supported",
    "TrainConfig()": "missing 1 required keyword-only argument: 'num_steps'",
    "dataclasses.replace(debug, train=TrainConfig(num_steps=3.5))": (
        "train.num_steps=3.5: expected int"
    ),
    "dataclasses.replace(debug, flow=FlowConfig(sigma_sampler='best'))": (
        "flow.sigma_sampler='best': expected uniform | logit_normal"
    ),
}


def test_load_explains_a_section_built_wrongly(tmp_path: Path, root: Path):
    # In a process of its own: here, the type checks of the tests would come first.
    for i, expression in enumerate(BAD_SECTIONS):
        (tmp_path / f"{i}.py").write_text(
            "import dataclasses, pathlib\n"
            "from jaxload.config import load\n"
            "from jaxload.training.objective import FlowConfig\n"
            "from jaxload.training.loop import TrainConfig\n"
            f"debug = load(pathlib.Path({str(root / 'configs' / 'debug.py')!r}))\n"
            f"def get_config():\n    return {expression}\n"
        )
    program = (
        "import pathlib, sys\n"
        "from jaxload import config, errors\n"
        "for name in sys.argv[1:]:\n"
        "    try: config.load(pathlib.Path(name))\n"
        "    except errors.InputError as error: print(error)\n"
    )
    paths = [str(tmp_path / f"{i}.py") for i in range(len(BAD_SECTIONS))]
    out = subprocess.run(
        [sys.executable, "-c", program, *paths],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for line, message in zip(out, BAD_SECTIONS.values(), strict=True):
        assert message in line


def test_load_suggests_a_file_that_exists(root: Path):
    with pytest.raises(InputError, match=r"no such file; did you mean '.*demo.py'\?"):
        config_lib.load(root / "configs" / "dmeo.py")


def test_an_error_inside_a_config_file_keeps_its_traceback(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text("def get_config():\n    return len(3)\n")
    with pytest.raises(TypeError, match="has no len"):
        config_lib.load(path)


def test_differences_name_both_values(debug_config: Config):
    other = config_lib.override(debug_config, "model.width=64")
    assert config_lib.differences(debug_config, other) == {"model.width": (32, 64)}
    assert config_lib.differences(debug_config, debug_config) == {}
