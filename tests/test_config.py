"""Tests of jaxload.config, and of every file in configs/."""

import dataclasses
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import pytest

from jaxload import config as config_lib
from jaxload import field_help, field_paths, field_types, fields
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.models.families import config_types
from jaxload.models.presets import preset
from jaxload.models.transformer_config import TransformerConfig
from jaxload.training.config import ParamGroup

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
        ("sample.seed=3000000000", r"sample.seed=3000000000: expected a seed from 0"),
        ("sample.shape=2x4", r"sample.shape: shape '2x4': expected FxHxW"),
        ("train.num_steps=0", r"train.num_steps=0: expected 1 or more"),
        ("balance.rule=best", r"expected equal-token \| dual \| dual-cost"),
        ("train.num_steps", r"expected section.field=value"),
        ("num_steps=3", r"expected section.field=value; did you mean 'train.num_ste"),
        ("beta1=3", r"expected section.field=value; did you mean 'optimizer.beta1'\?"),
        ("train=3", r"train=3: expected one field of this section, such as train.num_"),
        ("train.seed.x=3", r"no field 'train.seed.x': train.seed is int and has no fi"),
        (".=3", r"no field '': Config has data, "),
        ("model=wan-tinny", r"model 'wan-tinny': .*; did you mean 'wan-tiny'\?"),
        ("model=", r"model '': expected one of wan-tiny, "),
    ],
)
def test_override_explains_what_is_wrong(debug_config: Config, assignment, message):
    with pytest.raises(InputError, match=message):
        config_lib.override(debug_config, assignment)


def test_a_model_is_chosen_by_name_and_then_refined(debug_config: Config):
    chosen = ["model=wan2.1-t2v-1.3b", "model.remat=full"]
    assert config_lib.override_all(debug_config, chosen).model == (
        dataclasses.replace(preset("wan2.1-t2v-1.3b"), remat="full")
    )
    config = config_lib.override_all(debug_config, chosen[::-1])
    assert config.model == preset("wan2.1-t2v-1.3b"), "applied in turn"
    assert config_lib.override(config, "model=mmdit-tiny").model == preset("mmdit-tiny")


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
    "OptimizerConfig(learning_rate=1.0, groups=({'pattern': '*'},))": (
        "a field has the wrong type: 'dict' object has no attribute 'pattern'"
    ),
    "ParamGroup(patern='*')": "no field 'patern': ParamGroup has pattern,",
    "with_groups(ParamGroup(pattern='*', learning_rate='fast'))": (
        "a field has the wrong type: '<' not supported"
    ),
    "with_groups(ParamGroup(pattern=['a']))": (
        "optimizer.groups.0.pattern=['a']: expected str"
    ),
}


def test_load_explains_a_section_built_wrongly(tmp_path: Path, root: Path):
    # In a new process, without the type checks of tests, which would raise first.
    for i, expression in enumerate(BAD_SECTIONS):
        (tmp_path / f"{i}.py").write_text(
            "import dataclasses, pathlib\n"
            "from jaxload.config import load\n"
            "from jaxload.training.config import *\n"
            f"debug = load(pathlib.Path({str(root / 'configs' / 'debug.py')!r}))\n"
            "def with_groups(*groups):\n"
            "    optimizer = dataclasses.replace(debug.optimizer, groups=groups)\n"
            "    return dataclasses.replace(debug, optimizer=optimizer)\n"
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


def with_groups(config: Config, *groups: ParamGroup) -> Config:
    optimizer = dataclasses.replace(config.optimizer, groups=groups)
    return dataclasses.replace(config, optimizer=optimizer)


@pytest.fixture
def grouped(debug_config: Config) -> Config:
    """Returns a config with two parameter groups."""
    embeddings = ParamGroup(pattern="*embed*", learning_rate=1e-3)
    return with_groups(debug_config, embeddings, ParamGroup(pattern="*norm*"))


def test_groups_survive_json(grouped: Config):
    read = config_lib.from_dict(json.loads(json.dumps(config_lib.to_dict(grouped))))
    assert read == grouped
    assert type(read.optimizer.groups[1]) is ParamGroup


def test_override_changes_one_group(grouped: Config):
    config = config_lib.override(grouped, "optimizer.groups.1.learning_rate=1e-4")
    first, second = grouped.optimizer.groups
    changed = dataclasses.replace(second, learning_rate=1e-4)
    assert config.optimizer.groups == (first, changed)
    assert config == with_groups(grouped, first, changed), "nothing else"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("2.pattern=x", r"groups.2: optimizer.groups has 2 entries, counted from 0; n"),
        ("2.pattern=x", r"new ones go in the config file"),
        ("-1.pattern=x", r"expected the number of an entry after 'optimizer.groups', "),
        ("first.pattern=x", r"got 'first'; optimizer.groups has 2 entries, counted fr"),
        ("0.patern=x", r"no field 'optimizer.groups.0.patern': ParamGroup has pattern"),
        ("0.learning_rate=x", r"groups.0.learning_rate=x: expected float"),
        ("0.learning_rate=-2", r"learning_rate=-2.0: expected 0 or more"),
        ("0=x", r"groups.0=x: expected one field .* optimizer.groups.0.pattern=VALUE"),
    ],
)
def test_override_explains_what_is_wrong_in_a_group(
    grouped: Config, assignment, message
):
    with pytest.raises(InputError, match=message) as error:
        config_lib.override(grouped, f"optimizer.groups.{assignment}")
    assert "\n" not in str(error.value)


def test_override_of_all_groups_is_refused(grouped: Config):
    message = r"groups=x: expected one field of an entry, .* new ones go in the config "
    with pytest.raises(InputError, match=message):
        config_lib.override(grouped, "optimizer.groups=x")


def test_differences_of_groups(debug_config: Config, grouped: Config):
    other = config_lib.override(grouped, "optimizer.groups.1.weight_decay=0.5")
    assert config_lib.differences(grouped, other) == {
        "optimizer.groups.1.weight_decay": (-1.0, 0.5)
    }
    # Reported as a whole, because fields of a new group are not changed fields.
    one = with_groups(debug_config, grouped.optimizer.groups[0])
    plain = {"pattern": "*embed*", "learning_rate": 1e-3, "weight_decay": -1.0}
    assert config_lib.differences(debug_config, one) == {
        "optimizer.groups": ((), (plain,))
    }
    assert list(config_lib.differences(one, grouped)) == ["optimizer.groups"]


def test_describe_lists_each_group(grouped: Config):
    rows = {row.path: row for row in config_lib.describe(grouped)}
    assert rows["optimizer.groups"].value == "2 entries"
    assert rows["optimizer.groups.1.pattern"].value == "*norm*"
    assert rows["optimizer.groups.1.pattern"].meaning.startswith("Glob over dotted")


def test_differences_of_models_and_absent_sections(debug_config: Config):
    other = config_lib.override(debug_config, "model=mmdit-tiny")
    found = config_lib.differences(debug_config, other)
    assert found["model.kind"] == ("wan", "mmdit")
    assert found["model.depth"] == (2, None)
    none = dataclasses.replace(debug_config, synthetic=None)
    synthetic = config_lib.to_dict(debug_config)["synthetic"]
    assert config_lib.differences(none, debug_config) == {
        "synthetic": (None, synthetic)
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": 3}, r"train=3: expected a section"),
        ({"train": {}}, r"train: expected a value for num_steps, got none; add it"),
        ({"train": {"seeed": 3}}, r"no field 'train.seeed': .*did you mean 'seed'\?"),
        ({"model": {"kind": "gan"}}, r"model.kind='gan': expected wan \| mmdit"),
        ({"model": [3]}, r"model=\[3\]: expected a section"),
        (
            {"optimizer": {"learning_rate": 1.0, "groups": [{}]}},
            r"optimizer.groups.0: expected a value for pattern, got none",
        ),
        ({}, r"config: expected a value for data, model, balance, "),
    ],
)
def test_from_dict_explains_what_is_wrong(content, message):
    with pytest.raises(InputError, match=message):
        config_lib.from_dict(content)


def marks(
    hint: Any, prefix: str = "", *, inherited: bool = False
) -> Iterator[tuple[str, bool]]:
    """Yields each field's path, and True if it or an enclosing field is RESUMABLE."""
    models = config_types() if hint is TransformerConfig else ()
    for part in (hint, *typing.get_args(hint), *models):
        if typing.get_origin(part) is tuple:
            yield from marks(typing.get_args(part)[0], f"{prefix}0.")
        if not dataclasses.is_dataclass(part):
            continue
        hints = typing.get_type_hints(part)
        for option in dataclasses.fields(part):
            marked = inherited or option.metadata == fields.RESUMABLE
            yield f"{prefix}{option.name}", marked
            inner = f"{prefix}{option.name}."
            yield from marks(hints[option.name], inner, inherited=marked)


MARKS = sorted(set(marks(Config)))


def test_fields_of_every_section_are_found():
    paths = {path for path, _ in MARKS}
    assert {f.name for f in dataclasses.fields(Config)} < paths
    assert "optimizer.groups.0.pattern" in paths
    assert {"model.depth", "model.pooled_dim", "synthetic.clips"} < paths
    assert len({marked for _, marked in MARKS}) == 2


@pytest.mark.parametrize(("path", "marked"), MARKS)
def test_a_resume_may_change_only_marked_fields(path: str, marked: bool):
    assert config_lib.may_change_on_resume(path) == marked


def test_a_resume_may_not_change_what_is_not_there():
    for path in ("", "train", "trian.num_steps", "train.num_step"):
        assert not config_lib.may_change_on_resume(path)


@pytest.mark.parametrize("module", ["jaxload", "jaxload.config", "jaxload.cli"])
def test_import_loads_nothing_heavy(module: str):
    heavy = {"jax", "flax", "grain", "pyarrow", "av"}
    out = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert module in out
    assert not heavy & set(out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """A section of a section of a section."""

    hours: int = 0
    """Hours."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """A section of a section."""

    clock: Clock = field(default_factory=Clock, metadata=fields.RESUMABLE)
    spare: Clock | None = None
    """A second clock."""

    lamps: tuple[Clock, ...] = ()
    """Lamps that switch on by themselves."""

    windows: int | None = None
    """Number of windows."""

    door: Literal[1, 2] | bool = 1
    """A door or two, or whether there is one."""

    names: tuple[str, ...] = ()
    """Names of the room."""

    owner: str | None = None
    """Name of the owner."""

    sizes: tuple[float, ...] | None = None
    """Lengths of the walls."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class House:
    """A section with sections inside."""

    rooms: tuple[Room, ...]
    """Rooms."""

    hall: Room = field(default_factory=Room)


HOUSE = House(rooms=(Room(), Room(lamps=(Clock(), Clock(hours=3)))))


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("hall.clock.hours", "4", 4),
        ("rooms.0.clock.hours", "4", 4),
        ("rooms.1.lamps.1.hours", "4", 4),
        ("rooms.1.windows", "4", 4),
        ("rooms.1.windows", "none", None),
        ("rooms.1.door", "2", 2),
        ("rooms.1.door", "false", False),
        ("hall.sizes", "1,2.5", (1.0, 2.5)),
        ("hall.owner", "none", None),
        ("hall.owner", "nobody", "nobody"),
        ("hall.names", "", ()),
        ("hall.names", "a", ("a",)),
        ("hall.names", "a,b", ("a", "b")),
    ],
)
def test_assign_reaches_any_depth(path: str, text: str, expected):
    changed = field_paths.assign(HOUSE, path, text)
    leaves = {leaf.path: leaf.value for leaf in field_paths.leaves(changed)}
    assert leaves[path] == expected
    before = {leaf.path: leaf.value for leaf in field_paths.leaves(HOUSE)}
    assert {p for p in leaves if leaves[p] != before[p]} <= {path, "rooms"} | {
        path.rsplit(".", 2)[0]
    }
    content = json.loads(json.dumps(dataclasses.asdict(changed)))
    assert field_types.build(House, content, "") == changed


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "hall.spare.hours",
            r"this config has no section 'hall.spare'; add it to the ",
        ),
        ("hall.spare", r"this config has no section 'hall.spare'; add it to the confi"),
        ("hall.lamps.0.hours", r"hall.lamps has 0 entries, counted from 0; new ones "),
        ("rooms.1.lamps.2.hours", r"rooms.1.lamps has 2 entries"),
        ("hall.clock", r"expected one field of this section, .*hall.clock.hours=VALUE"),
        ("hall.windows", r"hall.windows=x: expected int \| none"),
        ("hall.door", r"hall.door=x: expected 1 \| 2 \| bool"),
        ("hall.sizes", r"hall.sizes=x: expected float,... \| none"),
        ("hall.names.0", r"hall.names has 0 entries"),
    ],
)
def test_assign_explains_what_is_wrong_at_any_depth(path: str, message: str):
    with pytest.raises(InputError, match=message):
        field_paths.assign(HOUSE, path, "x")


def test_describe_reaches_any_depth():
    rows = {row.path: row for row in field_help.describe(HOUSE)}
    assert rows["rooms"].type == "Room,..."
    assert rows["rooms.1.lamps"].value == "2 entries"
    assert rows["rooms.1.lamps.1.hours"].value == "3"
    assert rows["hall.spare"].type == "Clock | none"
    assert rows["hall.spare"].value == "none"
    assert rows["hall.clock.hours"].may_change_on_resume, "its section is marked"
    assert not rows["rooms.1.lamps.1.hours"].may_change_on_resume
    assert rows["hall.names"].value == "''"


@dataclasses.dataclass(frozen=True)
class Undocumented:
    """A section whose field lacks its docstring."""

    hours: int = 1


def test_a_field_without_a_docstring_is_named():
    message = r"Undocumented\.hours: expected a docstring under the field"
    with pytest.raises(InputError, match=message):
        list(field_help.describe(Undocumented()))
