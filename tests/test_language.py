"""Checks that docstrings and messages keep to the project's words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("benchmarks", "configs", "jaxload", "models", "tests")
OPENINGS = re.compile(r"(What|Of|Which|Where|Whether|Those|All that|How)\b")

# Words with several meanings, or that nobody else in the field uses, and what to write.
RETIRED = {
    r"data sets?": "dataset",
    r"mend(s|ed)?": "fix",
    r"makes? no sense": "is invalid",
    r"played": "simulated",
}


def sources(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents):
                yield path


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and text of each docstring, and of each field's."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield node.lineno, text


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and text of each string constant, docstrings included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_docstrings_open_with_a_verb_or_a_noun(root: Path):
    found = [
        f"{path.relative_to(root)}:{line}: {text.splitlines()[0]}"
        for path in sources(root)
        for line, text in docstrings(path)
        if OPENINGS.match(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", RETIRED)
def test_retired_words_are_not_used(root: Path, word: str):
    pattern = re.compile(rf"\b{word}\b")
    texts = [
        (f"{path.relative_to(root)}:{line}", text)
        for path in sources(root)
        if path != Path(__file__)
        for line, text in strings(path)
    ]
    texts += [
        (f"{page.relative_to(root)}:{number}", line)
        for page in [*root.glob("*.md"), *root.glob("docs/*.md")]
        for number, line in enumerate(page.read_text().splitlines(), start=1)
    ]
    found = [f"{place}: {text}" for place, text in texts if pattern.search(text)]
    assert not found, f"write {RETIRED[word]!r}:\n" + "\n".join(found)
