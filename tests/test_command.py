"""Tests of jaxload.command and jaxload.cli: help, usage, versions and exit codes."""

import importlib
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

import jaxload
from jaxload import cli, command
from jaxload import config as config_lib
from jaxload.errors import InputError

RESUME = "[may change on resume]"
OTHERS = "fields that this command uses less, or not at all:"


def run(arguments: Sequence[str], **options) -> subprocess.CompletedProcess[str]:
    """Runs Python with the given arguments in a new process."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def help_of(name: str, capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """Returns the help that a command prints, run in this process."""
    main = importlib.import_module(f"jaxload.{name}").main
    with pytest.raises(SystemExit) as stop:
        main(["--help", *arguments])
    assert stop.value.code == 0
    return capsys.readouterr().out


def sections_in(text: str) -> list[str]:
    """Returns the sections whose fields a help text lists, in order."""
    return list(dict.fromkeys(re.findall(r"^  (\w+)\.\S+ \(", text, re.M)))


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        (
            "train",
            [
                *("train", "optimizer", "flow", "mesh", "balance", "data", "model"),
                "sample",
            ],
        ),
        ("plan", ["balance", "mesh", "shapes", "model"]),
        ("calibrate", ["balance", "mesh", "model"]),
        ("prepare", ["data", "shapes", "model"]),
    ],
)
def test_help_shows_the_most_used_fields_first(name: str, sections, capsys):
    first, others = help_of(name, capsys).split(OTHERS)
    assert sections_in(first) == sections
    assert sections_in(others)
    rows = config_lib.describe(config_lib.load(command.DEMO))
    for row in rows:
        assert f"  {row.path} ({row.type}) = {row.value}\n" in first + others, row
    assert len(re.findall(r"^  \w+\.\S+ \(", first + others, re.M)) == len(rows)


def test_prepare_shows_single_fields_first(capsys):
    first, others = help_of("prepare", capsys).split(OTHERS)
    assert "  model.text_dim (int)" in first
    assert "  model.width (int)" in others
    assert "  model.text_dim (int)" not in others


def test_sample_shows_what_it_can_set_without_a_run(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    text = help_of("sample", capsys)
    assert sections_in(text) == ["sample"]
    assert OTHERS not in text
    assert "values in the demo (work directory runs/demo: expected a run," in text


def test_help_shows_the_values_of_this_command_line(capsys):
    text = help_of("plan", capsys, "--set", "model=mmdit-tiny")
    assert "  model.kind (mmdit) = mmdit\n" in text


def test_help_marks_fields_that_a_resume_may_change(capsys):
    text = help_of("train", capsys)
    assert "updates of the whole run. [may change on resume]\n" in text
    assert (
        "Seed, 0 to 2^32 - 1, of the initial parameters, sample order and noise.\n"
        in text
    )


def test_help_is_as_wide_as_the_terminal(capsys, monkeypatch: pytest.MonkeyPatch):
    wide = help_of("train", capsys)
    monkeypatch.setenv("COLUMNS", "60")
    narrow = help_of("train", capsys)
    assert max(map(len, wide.splitlines())) > 100, "not wrapped into a pipe"
    assert narrow.count(RESUME) == wide.count(RESUME), "never split"
    _, fields = narrow.split("fields for --set")
    for line in fields.splitlines():
        assert len(line) <= 60 or " " not in line.strip(), line
    assert " ".join(wide.split("config:")[1].split()) == (
        " ".join(narrow.split("config:")[1].split())
    )


@pytest.mark.parametrize(
    ("script", "started"),
    [
        ("/usr/bin/jaxload", "jaxload {}"),
        ("/code/jaxload/__main__.py", "python -m jaxload {}"),
        ("/code/jaxload/train.py", "python -m jaxload.{}"),
        ("/usr/bin/pytest", "python -m jaxload.{}"),
    ],
)
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_usage_shows_how_a_command_was_started(
    name: str, script: str, started: str, capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", [script])
    expected = started.format(name)
    text = help_of(name, capsys)
    assert text.startswith(f"usage: {expected} [-h]")
    assert f": `{expected}" in " ".join(text.split())


def test_every_command_is_listed(root: Path):
    mains = {path.stem for path in (root / "jaxload").glob("*.py") if _has_run(path)}
    assert mains == set(cli.COMMANDS)


def _has_run(path: Path) -> bool:
    return f'command.run("jaxload.{path.stem}"' in path.read_text()


def test_the_programs_help_lists_the_commands_and_imports_none_of_them():
    program = (
        "import sys; sys.argv = ['/bin/jaxload', '--help']; import jaxload.cli as cli;"
        "code = cli.main(); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    result = run(["-c", program])
    assert result.returncode == 0
    assert result.stdout.startswith("usage: jaxload COMMAND")
    for name in cli.COMMANDS:
        assert re.search(rf"^  {name} +[A-Z][^`:]*\.$", result.stdout, re.M), name
    loaded = set(result.stderr.split())
    assert "jaxload.cli" in loaded
    assert not loaded & {"jax", "numpy", "jaxload.config", "jaxload.train"}


def test_the_program_without_a_command(capsys):
    assert cli.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: jaxload COMMAND")


@pytest.mark.parametrize(
    ("name", "nearest"), [("tarin", "train"), ("smaple", "sample"), ("--plan", "plan")]
)
def test_an_unknown_command_is_one_line(name: str, nearest: str, capsys):
    assert cli.main([name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"jaxload: no command {name!r}: expected one of {', '.join(cli.COMMANDS)}; did "
        f"you mean {nearest!r}?"
    )


def test_the_version(root: Path, capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxload {jaxload.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", jaxload.__version__)
    assert not hasattr(jaxload, "__verson__")


def test_the_version_of_a_checkout_that_is_not_installed(root: Path):
    # Without site-packages, jaxload has no package metadata.
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import jaxload;"
        "print(jaxload.__version__, 'jax' in sys.modules)"
    )
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    result = run(["-S", "-c", program])
    assert result.stdout == f"{project['version']} False\n", result.stderr


def test_the_installed_program_is_the_cli(root: Path):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"jaxload": "jaxload.cli:main"}


@pytest.fixture
def fake_command(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replaces jaxload.train by a module that has no `main` yet."""
    module = types.ModuleType("jaxload.train")
    monkeypatch.setitem(sys.modules, "jaxload.train", module)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (None, 0, ""),
        (InputError("seed=x: expected int"), 2, "jaxload.train: seed=x: expected int"),
        (KeyboardInterrupt(), 130, "\njaxload.train: interrupted; start it again"),
    ],
)
def test_the_program_exits_as_the_command_does(
    fake_command: types.ModuleType, error, code: int, message: str, capsys
):
    seen = []

    def main(argv: Sequence[str]) -> int:
        seen.append(argv)
        if error is not None:
            raise error
        return 0

    vars(fake_command)["main"] = main
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "--seed", "x"])
    assert stop.value.code == code
    assert capsys.readouterr().err == (f"{message}\n" if message else "")
    assert seen == [["--seed", "x"]]


def test_the_program_says_how_to_continue_a_command(
    fake_command: types.ModuleType, capsys
):
    def main(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    vars(fake_command).update(main=main, AGAIN="add --resume")
    with pytest.raises(SystemExit):
        cli.main(["train"])
    assert capsys.readouterr().err == "\njaxload.train: interrupted; add --resume\n"


@pytest.mark.parametrize("name", ["train", "prepare"])
def test_commands_that_continue_say_so(name: str):
    assert "continue" in importlib.import_module(f"jaxload.{name}").AGAIN


def test_all_ways_to_start_a_command_are_one(tmp_path: Path):
    arguments = ["--workdir", "nothing"]
    one = run(["-m", "jaxload.export", *arguments], cwd=tmp_path)
    other = run(["-m", "jaxload", "export", *arguments], cwd=tmp_path)
    assert one.returncode == other.returncode == 2
    assert one.stderr == other.stderr
    (line,) = one.stderr.splitlines()
    assert line.startswith("jaxload.export: work directory nothing: expected a run,")
