"""The program `jaxload`: runs one of the commands.

`jaxload train` and `python -m jaxload train` equal `python -m jaxload.train`. A command
is imported only when it runs, so that help and errors about names are instant.
"""

import ast
import difflib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import jaxload

COMMANDS = ("train", "plan", "simulate", "calibrate", "prepare", "sample", "export")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and exits with its code; returns a code for help and errors."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        print(_help(), file=sys.stderr)
        return 2
    name, *rest = argv
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"jaxload {jaxload.__version__}")
        return 0
    if name not in COMMANDS:
        (close,) = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.0)
        print(
            f"jaxload: no command {name!r}: expected one of {', '.join(COMMANDS)}; did "
            f"you mean {close!r}?",
            file=sys.stderr,
        )
        return 2
    _run(name, rest)


def _run(name: str, argv: Sequence[str]) -> NoReturn:
    from jaxload import command

    module = importlib.import_module(f"jaxload.{name}")
    again = getattr(module, "AGAIN", command.START_AGAIN)
    command.run(module.__name__, lambda: module.main(argv), again=again)


def _help() -> str:
    is_module = Path(sys.argv[0]).parts[-2:] == ("jaxload", "__main__.py")
    program = "python -m jaxload" if is_module else "jaxload"
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            f"usage: {program} COMMAND [OPTION ...]",
            f"       {program} COMMAND --help",
            f"       {program} --version",
            "",
            _sentence(jaxload.__doc__),
            "",
            "commands:",
            *(f"  {name:{width}}  {_summary(name)}" for name in COMMANDS),
        ]
    )


def _summary(name: str) -> str:
    """Reads the first sentence of a command's docstring without an import."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    return _sentence(ast.get_docstring(ast.parse(source)))


def _sentence(docstring: str | None) -> str:
    """Returns the first sentence of a docstring, without its command line."""
    assert docstring, "a command has no docstring"
    (line, *_) = docstring.splitlines()
    return line.partition(": `")[0].rstrip(".") + "."
