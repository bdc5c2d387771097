"""Types of config fields: checks, parses and names values by their annotation.

A field is an int, float, bool, str or Literal, a `tuple[X, ...]`, a section (a
dataclass), or a union of these. A Literal field `kind` distinguishes the sections of a
union; `X | None` is a value that may be absent. A type annotated with
`jaxload.fields.OneOf` is the union of the sections that it lists.
"""

import contextlib
import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any

from jaxload.errors import InputError
from jaxload.fields import OneOf

_MAX_INT = 2**63 - 1


def hints(section: type) -> dict[str, Any]:
    """Returns the type of every field by name."""
    return typing.get_type_hints(section, include_extras=True)


def options(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type itself as the only member."""
    if typing.get_origin(hint) is typing.Annotated:
        (one_of,) = hint.__metadata__
        assert isinstance(one_of, OneOf), hint
        return one_of.types()
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def item_type(hint: Any) -> Any:
    """Returns X for `tuple[X, ...]`, or None for any other type."""
    if typing.get_origin(hint) is not tuple:
        return None
    item, rest = typing.get_args(hint)
    assert rest is Ellipsis, hint
    return item


def sections(hint: Any) -> tuple[type, ...]:
    """Returns the dataclasses that a value, or an item of a tuple, may be one of."""
    item = item_type(hint)
    if item is not None:
        return sections(item)
    classes = (option for option in options(hint) if isinstance(option, type))
    return tuple(cls for cls in classes if dataclasses.is_dataclass(cls))


def all_sections(section: type) -> Iterator[type]:
    """Yields a section and every section nested in it."""
    yield section
    for hint in hints(section).values():
        for inner in sections(hint):
            yield from all_sections(inner)


def known_field(section: type, name: str, path: str) -> str:
    """Returns the name, or raises an error that lists the section's fields."""
    names = [field.name for field in dataclasses.fields(section)]
    if name not in names:
        raise InputError(
            f"no field {path!r:.80}: {section.__name__} has {', '.join(names)}"
            f"{suggest(name, names)}"
        )
    return name


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message with the most similar name, if any."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def build(section: type, content: Any, path: str) -> Any:
    """Builds a section from nested dictionaries, checking names and types."""
    if not isinstance(content, Mapping):
        raise InputError(f"{path}={content!r:.80}: expected a section")
    types_by_name = hints(section)
    values = {}
    for name, value in content.items():
        inner = join(path, name)
        values[name] = check(
            value, types_by_name[known_field(section, name, inner)], inner
        )
    missing = [name for name in _required(section) if name not in values]
    if missing:
        raise InputError(
            f"{path or 'config'}: expected a value for {', '.join(missing)}, got none; "
            "add it"
        )
    return section(**values)


def join(path: str, name: str | int) -> str:
    """Appends a field's name or an entry's index to a path."""
    return f"{path}.{name}" if path else str(name)


def check(value: Any, hint: Any, path: str) -> Any:
    """Converts a value to its field's type, or raises an error that names the type."""
    if len(options(hint)) > 1:
        return _check_union(value, hint, path)
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return build(hint, value, path)
    item = item_type(hint)
    if item is not None and isinstance(value, (list, tuple)):
        nested = bool(sections(item))
        return tuple(
            check(v, item, join(path, i) if nested else path)
            for i, v in enumerate(value)
        )
    if not _is_scalar(value, hint):
        bits = " of 64 bits" if type(value) is hint is int else ""
        raise InputError(f"{path}={value!r:.80}: expected {type_name(hint)}{bits}")
    return float(value) if hint is float else value


def parse(text: str, hint: Any, path: str) -> Any:
    """Parses a value from a command line as its field's type."""
    item = item_type(hint)
    if item is not None:
        return tuple(parse(part, item, path) for part in text.split(",") if text)
    # None comes first: str would accept "none" as text.
    members = sorted(options(hint), key=lambda member: member is not NoneType)
    for member in members:
        with contextlib.suppress(ValueError, KeyError):  # InputError is a ValueError.
            if len(members) > 1:
                return parse(text, member, path)
            return check(_convert(text, member), member, path)
    raise InputError(f"{path}={text}: expected {type_name(hint)}")


def type_name(hint: Any) -> str:
    """Returns the name of a type for `--help` and error messages."""
    item = item_type(hint)
    if item is not None:
        return f"{type_name(item)},..."
    if hint is NoneType:
        return "none"
    members = options(hint)
    if len(members) > 1:
        return " | ".join(map(type_name, members))
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    return hint.__name__


def _advice(hint: Any) -> str:
    """Returns the end of an error message about an unknown section."""
    texts = [of.advice for of in getattr(hint, "__metadata__", ()) if of.advice]
    return "".join(f"; {text}" for text in texts)


def _required(section: type) -> Iterator[str]:
    for field in dataclasses.fields(section):
        has_default = field.default is not dataclasses.MISSING
        if not has_default and field.default_factory is dataclasses.MISSING:
            yield field.name


def _is_scalar(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if hint is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Not math.isfinite, which fails for integers that no float can hold.
        return is_number and abs(value) <= sys.float_info.max
    # Arrays and counters have 64 bits, and such a number fits into a message.
    return type(value) is hint and (hint is not int or -_MAX_INT <= value <= _MAX_INT)


def _check_union(value: Any, hint: Any, path: str) -> Any:
    members = options(hint)
    if value is None and NoneType in members:
        return None
    members = [member for member in members if member is not NoneType]
    if len(sections(hint)) == len(members):
        section = _section_of_kind(value, members, path, _advice(hint))
        return build(section, value, path)
    for member in members:
        with contextlib.suppress(InputError):
            return check(value, member, path)
    raise InputError(f"{path}={value!r:.80}: expected {type_name(hint)}")


def _section_of_kind(value: Any, members: list[type], path: str, advice: str) -> type:
    """Returns the section type that a dictionary describes, by its field `kind`."""
    if len(members) == 1:
        return members[0]
    if not isinstance(value, Mapping):
        raise InputError(f"{path}={value!r:.80}: expected a section")
    kinds = {typing.get_args(hints(member)["kind"])[0]: member for member in members}
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(
            f"{path}.kind={kind!r:.80}: expected {' | '.join(kinds)}{advice}"
        )
    return kinds[kind]


def _convert(text: str, hint: Any) -> Any:
    if hint is NoneType:
        return {"none": None}[text.lower()]
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    if typing.get_origin(hint) is typing.Literal:
        return {str(choice): choice for choice in typing.get_args(hint)}[text]
    return hint(text) if hint in (int, float) else text
