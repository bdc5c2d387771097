"""Tests the lines that commands print."""

import ast
import io
import itertools
import time
from pathlib import Path

import pytest
from rich.table import Table

from jaxload.console import Console, count_up, phase, visible


def test_a_line_is_printed_as_it_is():
    out = io.StringIO()
    line = "clips/[red]a [1].mp4: 12 of 3,456 clips, '30 s', " + 20 * "/long"
    Console(file=out, width=20, force_terminal=True, color_system="truecolor").say(line)
    assert out.getvalue() == line + "\n"


def test_control_characters_are_shown_and_not_sent():
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    console.say("a\x1b]0;title\x07b\x9bc d \udcff\nnext")
    assert out.getvalue() == "a\\x1b]0;title\\x07b\\x9bc d \\udcff\nnext\n"


def test_titles_of_tables_and_phases_are_no_markup():
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    console.print(Table(30 * "a", title="[red]x[/] :smile:"))
    with phase(console, "[red]y[/] \x1b[2J", 1) as advance:
        advance()
    with count_up(console, "[red]z[/] \x1b[2J", "rows") as advance:
        advance()
    shown = out.getvalue()
    for text in ("[red]x[/] :smile:", "[red]y[/] \\x1b[2J", "[red]z[/] \\x1b[2J"):
        assert text in shown
    assert "\x1b[2J" not in shown.replace("\\x1b[2J", "")


def test_the_time_left_is_said_once_it_can_be_estimated(
    monkeypatch: pytest.MonkeyPatch,
):
    seconds = itertools.count(start=0.0, step=11.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    out = io.StringIO()
    with phase(Console(file=out, width=200), "encoding", 1_000) as advance:
        for _ in range(4):
            advance()
        advance(40)
    assert out.getvalue().splitlines() == [
        "encoding: 1/1000",
        "encoding: 2/1000",
        "encoding: 3/1000, 0.1/s, 3 h 2 min left",
        "encoding: 4/1000, 0.1/s, 3 h 2 min left",
        "encoding: 44/1000, 0.8/s, 19 min 55 s left",
        "encoding: 44/1000 in 66.0 s",
    ]


def test_text_goes_through_say(root: Path):
    folders = ("benchmarks", "jaxload", "models")
    paths = [path for folder in folders for path in (root / folder).rglob("*.py")]
    for path in paths:
        if path == root / "jaxload" / "console.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                options = {keyword.arg for keyword in node.keywords}
                plain = node.func.attr == "print" and "highlight" in options
                assert not plain, f"{path}:{node.lineno}: use Console.say"
            elif isinstance(node, ast.ImportFrom):
                # Rich's own Console has no `say`.
                assert node.module != "rich.console", f"{path}:{node.lineno}"


def test_a_title_is_no_format():
    """Paths in titles may hold braces."""
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    title = "writing {0} {task} [/b].csv"
    with phase(console, title, 2) as advance:
        advance(2)
    assert out.getvalue().count(title) >= 2  # The bar, and the line at its end.


def test_names_show_in_their_own_order():
    assert visible("a\u202egnp.exe \u2028\u2069") == r"a\u202egnp.exe \u2028\u2069"
    assert visible("\u05e7\u05dc\u05d8 \u732b") == "\u05e7\u05dc\u05d8 \u732b"
