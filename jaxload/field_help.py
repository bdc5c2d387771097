"""Explanations of config fields, from the docstring under each field."""

import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from jaxload import field_paths, field_types
from jaxload.errors import InputError
from jaxload.field_paths import Leaf

# Null bytes become spaces after wrapping, so that no line breaks within the mark.
_RESUME_MARK = "[may\0change\0on\0resume]"


@dataclasses.dataclass(frozen=True)
class FieldHelp:
    """One field as `--help` shows it."""

    path: str
    type: str
    value: str
    meaning: str
    may_change_on_resume: bool

    def format(self, width: int) -> str:
        """Formats the field for a terminal of `width` columns."""
        mark = f" {_RESUME_MARK}" if self.may_change_on_resume else ""
        head = f"{self.path} ({self.type}) = {self.value}"
        return "\n".join(
            textwrap.fill(
                text,
                width,
                initial_indent=first,
                subsequent_indent=other,
                break_long_words=False,
                break_on_hyphens=False,
            )
            for text, first, other in (
                (head, " " * 2, " " * 4),
                (self.meaning + mark, " " * 8, " " * 8),
            )
        ).replace("\0", " ")


def describe(section: Any) -> Iterator[FieldHelp]:
    """Explains the fields of a section and of its nested sections."""
    for leaf in field_paths.leaves(section):
        yield FieldHelp(
            path=leaf.path,
            type=field_types.type_name(leaf.hint),
            value=_text(leaf),
            meaning=_meaning(leaf),
            may_change_on_resume=field_paths.may_change_on_resume(
                type(section), leaf.path
            ),
        )


def _text(leaf: Leaf) -> str:
    """Formats a value as `--set` reads it, or counts the sections of a tuple."""
    if leaf.value is None:
        return "none"
    if not isinstance(leaf.value, tuple):
        return str(leaf.value) or "''"
    if field_types.sections(leaf.hint):
        return field_paths.count(leaf.value)
    return ",".join(map(str, leaf.value)) or "''"


def _meaning(leaf: Leaf) -> str:
    """Returns the docstring under a field, or that of the section in the field."""
    meaning = _meanings(leaf.owner).get(leaf.name)
    inner = field_types.sections(leaf.hint)
    if meaning is None and inner:
        return inspect.getdoc(inner[0]) or ""
    if meaning is None:
        # A family outside of jaxload may lack it; the project's own fields are tested.
        raise InputError(
            f"{leaf.owner.__name__}.{leaf.name}: expected a docstring under the field, "
            "which --help prints, found none; add it"
        )
    return meaning


@functools.cache
def _meanings(section: type) -> Mapping[str, str]:
    """Reads the docstrings under fields from the source, as Python discards them."""
    meanings = {}
    for parent in reversed(section.__mro__):
        if dataclasses.is_dataclass(parent):
            meanings |= _own_meanings(parent)
    return meanings


def _own_meanings(section: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    meanings = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                meanings[name] = " ".join(meaning.split())
    return meanings
