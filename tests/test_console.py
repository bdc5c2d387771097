"""Tests the lines that commands print."""

import ast
import io
from pathlib import Path

from jaxload.console import Console


def test_a_line_is_printed_as_it_is():
    out = io.StringIO()
    line = "clips/[red]a [1].mp4: 12 of 3,456 clips, '30 s', " + 20 * "/long"
    Console(file=out, width=20, force_terminal=True, color_system="truecolor").say(line)
    assert out.getvalue() == line + "\n"


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
