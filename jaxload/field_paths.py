"""Config fields by dotted path: `train.num_steps`, `optimizer.groups.0.learning_rate`.

Each part of a path is the name of a field, or the index of an entry if the field is a
tuple.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

from jaxload import field_types, fields
from jaxload.errors import InputError
from jaxload.field_types import join

Section = TypeVar("Section")

_IN_FILE = "new ones go in the config file"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A field that holds a value, an absent section, or a tuple of sections."""

    path: str
    owner: type
    """Section that has the field."""

    name: str
    hint: Any
    value: Any


def leaves(section: Any, path: str = "") -> Iterator[Leaf]:
    """Yields the fields of a section and of its nested sections, in order."""
    hints = field_types.hints(type(section))
    for field in dataclasses.fields(section):
        value, inner = getattr(section, field.name), join(path, field.name)
        if _is_section(value):
            yield from leaves(value, inner)
            continue
        yield Leaf(inner, type(section), field.name, hints[field.name], value)
        if field_types.sections(hints[field.name]):
            for i, entry in enumerate(value or ()):
                yield from leaves(entry, join(inner, i))


def assign(section: Section, path: str, text: str) -> Section:
    """Returns a copy of a section with the field at a path set to a parsed text."""
    keys = path.split(".")
    return _assign(section, type(section), keys, text, path="")


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields the paths at which two sections differ, with both values.

    A nested section that one side lacks, and tuples of different lengths, count as one
    difference each.
    """
    if _is_section(old) and _is_section(new):
        for name in dict.fromkeys([*_names(old), *_names(new)]):
            values = getattr(old, name, None), getattr(new, name, None)
            yield from differences(*values, join(path, name))
    elif _has_entries(old) and _has_entries(new) and len(old) == len(new):
        for i, entries in enumerate(zip(old, new, strict=True)):
            yield from differences(*entries, join(path, i))
    elif old != new:
        yield path, _plain(old), _plain(new)


def may_change_on_resume(hint: Any, path: str) -> bool:
    """Returns whether the field at a path, or an enclosing field, is RESUMABLE.

    `hint` is the section that the path starts from, or any type that contains it.
    """
    key, _, rest = path.partition(".")
    if field_types.item_type(hint) is not None:
        return may_change_on_resume(field_types.item_type(hint), rest)
    for section in field_types.sections(hint):
        for field in dataclasses.fields(section):
            if field.name == key and (
                fields.may_change_on_resume(field)
                or may_change_on_resume(field_types.hints(section)[key], rest)
            ):
                return True
    return False


def _assign(value: Any, hint: Any, keys: list[str], text: str, path: str) -> Any:
    if not keys:
        return _parse(value, hint, text, path)
    key, *rest = keys
    inner = join(path, key)
    if _is_section(value):
        name = field_types.known_field(type(value), key, inner)
        inner_hint = field_types.hints(type(value))[name]
        changed = _assign(getattr(value, name), inner_hint, rest, text, inner)
        return dataclasses.replace(value, **{name: changed})
    item = field_types.item_type(hint)
    if item is not None:
        index = _index(value, key, path)
        changed = _assign(value[index], item, rest, text, inner)
        return (*value[:index], changed, *value[index + 1 :])
    if field_types.sections(hint):
        raise _absent(path)
    raise InputError(
        f"no field {inner!r}: {path} is {field_types.type_name(hint)} and has no "
        f"fields; write {path}=VALUE"
    )


def _parse(value: Any, hint: Any, text: str, path: str) -> Any:
    if not field_types.sections(hint):
        return field_types.parse(text, hint, path)
    if value is None:
        raise _absent(path)
    if _is_section(value):
        raise InputError(
            f"{path}={text}: expected one field of this section, such as "
            f"{join(path, _names(value)[0])}=VALUE"
        )
    (entry, *_) = field_types.sections(hint)
    raise InputError(
        f"{path}={text}: expected one field of an entry, such as "
        f"{join(join(path, 0), _names(entry)[0])}=VALUE; {path} has {count(value)}, "
        f"{_IN_FILE}"
    )


def _index(entries: tuple[Any, ...], key: str, path: str) -> int:
    if not (key.isascii() and key.isdecimal()):
        raise InputError(
            f"{join(path, key)}: expected the number of an entry after {path!r}, got "
            f"{key!r}; {path} has {count(entries)}, counted from 0"
        )
    if int(key) >= len(entries):
        raise InputError(
            f"{join(path, key)}: {path} has {count(entries)}, counted from 0; "
            f"{_IN_FILE}"
        )
    return int(key)


def count(entries: tuple[Any, ...]) -> str:
    """Returns the number of entries as text: "1 entry", "2 entries"."""
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"


def _absent(path: str) -> InputError:
    return InputError(f"this config has no section {path!r}; add it to the config file")


def _is_section(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _has_entries(value: Any) -> bool:
    return isinstance(value, tuple) and any(map(_is_section, value))


def _names(section: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _plain(value: Any) -> Any:
    if _is_section(value):
        return dataclasses.asdict(value)
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
