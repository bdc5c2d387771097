"""The configuration of a run: loading, overriding, comparing and explaining it."""

import ast
import dataclasses
import difflib
import inspect
import math
import re
import runpy
import textwrap
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxload.balance.batch_sizes import BalanceConfig
from jaxload.data.source import DataConfig
from jaxload.errors import InputError
from jaxload.media.synthetic import SyntheticConfig
from jaxload.models import ModelConfig
from jaxload.sampling.sampler import SampleConfig
from jaxload.shapes.clips import ShapeRules
from jaxload.training.loop import TrainConfig
from jaxload.training.objective import FlowConfig
from jaxload.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One run. Each section is owned by the part that it configures."""

    data: DataConfig
    synthetic: SyntheticConfig | None = None
    model: ModelConfig
    balance: BalanceConfig
    shapes: ShapeRules = dataclasses.field(default_factory=ShapeRules)
    flow: FlowConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    sample: SampleConfig


def load(path: Path) -> Config:
    """Runs a config file's `get_config()`."""
    if not path.is_file():
        what = "expected a file, got a directory" if path.is_dir() else "no such file"
        siblings = [str(p) for p in sorted(path.parent.glob("*.py"))]
        raise InputError(f"config {path}: {what}{_suggest(str(path), siblings)}")
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
    except SyntaxError as error:
        raise InputError(
            f"config {path}: line {error.lineno}: {error.msg}; correct the file"
        ) from error
    if not callable(get_config):
        raise InputError(
            f"config {path}: expected a function get_config() that returns a Config, "
            "found none"
        )
    try:
        config = get_config()
    except TypeError as error:
        raise _construction_error(path, error) from error
    if not isinstance(config, Config):
        raise InputError(
            f"config {path}: expected get_config() to return a Config, got "
            f"{type(config).__name__}"
        )
    try:
        return from_dict(to_dict(config))  # Checks the type of every field.
    except InputError as error:
        raise InputError(f"config {path}: {error}") from error


def override_all(config: Config, assignments: Iterable[str]) -> Config:
    """Applies each `section.field=value` in turn."""
    for assignment in assignments:
        config = override(config, assignment)
    return config


def override(config: Config, assignment: str) -> Config:
    """Applies `section.field=value`; the value is read as the field's type."""
    path, equals, text = assignment.partition("=")
    section_name, dot, field_name = path.partition(".")
    if not (equals and dot):
        raise InputError(f"--set {assignment}: expected section.field=value")
    section = getattr(config, _known_field(Config, section_name, section_name))
    if section is None:
        raise InputError(
            f"--set {assignment}: this config has no section {section_name!r}; add it "
            "to the config file"
        )
    name = _known_field(type(section), field_name, path)
    value = _parse(text, _hints(type(section))[name], path)
    return dataclasses.replace(
        config, **{section_name: dataclasses.replace(section, **{name: value})}
    )


def to_dict(config: Config) -> dict[str, Any]:
    """A config as nested dictionaries, as JSON can hold it."""
    return dataclasses.asdict(config)


def from_dict(content: Mapping[str, Any]) -> Config:
    """Builds a config from nested dictionaries, checking names and types."""
    return _build(Config, content, prefix="")


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The fields in which two configs differ, by path, with both values."""
    old_fields, new_fields = dict(_flatten(old)), dict(_flatten(new))
    paths = sorted(old_fields.keys() | new_fields.keys())
    pairs = {path: (old_fields.get(path), new_fields.get(path)) for path in paths}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


@dataclasses.dataclass(frozen=True)
class FieldHelp:
    """What `--help` says of one field."""

    path: str
    type: str
    value: str
    meaning: str


def describe(config: Config) -> list[FieldHelp]:
    """Lists every field of a config with its type, its value and its meaning."""
    rows = []
    for section_field in dataclasses.fields(Config):
        section = getattr(config, section_field.name)
        if section is None:
            continue
        meanings = _meanings(type(section))
        hints = _hints(type(section))
        for field in dataclasses.fields(section):
            rows.append(
                FieldHelp(
                    path=f"{section_field.name}.{field.name}",
                    type=_type_name(hints[field.name]),
                    value=_text(getattr(section, field.name)),
                    meaning=meanings[field.name],
                )
            )
    return rows


def _build(cls: type, content: Any, prefix: str) -> Any:
    if not isinstance(content, Mapping):
        raise InputError(f"{prefix[:-1]}={content!r}: expected a section")
    values = {}
    hints = _hints(cls)
    for name, value in content.items():
        path = f"{prefix}{name}"
        hint = hints[_known_field(cls, name, path)]
        values[name] = _check(value, hint, path)
    try:
        return cls(**values)
    except TypeError as error:
        raise InputError(f"{prefix or 'config'}: {error}") from error


def _check(value: Any, hint: Any, path: str) -> Any:
    """Returns a value as its field's type, or says what was expected."""
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return _check_union(value, _alternatives(hint), path)
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return _build(hint, value, prefix=f"{path}.")
    if origin is typing.Literal:
        valid = value in typing.get_args(hint)
    elif origin is tuple:
        (item, _) = typing.get_args(hint)
        if isinstance(value, (list, tuple)):
            return tuple(_check(v, item, path) for v in value)
        valid = False
    elif hint is float:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool)
        valid = valid and math.isfinite(value)
        value = float(value) if valid else value
    else:
        valid = type(value) is hint
    if not valid:
        raise InputError(f"{path}={value!r}: expected {_type_name(hint)}")
    return value


def _check_union(value: Any, alternatives: Sequence[type], path: str) -> Any:
    """Reads a section that may be absent, or is of the kind that it says it is."""
    if value is None and types.NoneType in alternatives:
        return None
    sections = [cls for cls in alternatives if cls is not types.NoneType]
    if len(sections) == 1:
        return _check(value, sections[0], path)
    if not isinstance(value, Mapping):
        raise InputError(f"{path}={value!r}: expected a section")
    kinds = {_hints(cls)["kind"]: cls for cls in sections}
    kinds = {typing.get_args(kind)[0]: cls for kind, cls in kinds.items()}
    kind = value.get("kind")
    if kind not in kinds:
        raise InputError(f"{path}.kind={kind!r}: expected {' | '.join(kinds)}")
    return _check(value, kinds[kind], path)


def _alternatives(hint: Any) -> Sequence[type]:
    return typing.get_args(hint) or (hint,)


def _parse(text: str, hint: Any, path: str) -> Any:
    """Reads what a command line says of a field."""
    origin = typing.get_origin(hint)
    try:
        if origin is tuple:
            (item, _) = typing.get_args(hint)
            return tuple(_parse(part, item, path) for part in text.split(","))
        if hint is bool:
            return {"true": True, "false": False}[text.lower()]
        value = hint(text) if hint in (int, float) else text
    except (ValueError, KeyError):
        raise InputError(f"{path}={text}: expected {_type_name(hint)}") from None
    return _check(value, hint, path)


def _known_field(cls: type, name: str, path: str) -> str:
    names = [field.name for field in dataclasses.fields(cls)]
    if name not in names:
        raise InputError(
            f"no field {path!r}: {cls.__name__} has {', '.join(names)}"
            f"{_suggest(name, names)}"
        )
    return name


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _construction_error(path: Path, error: TypeError) -> Exception:
    """Explains a section that a config file built with wrong names, if it was that."""
    match = re.fullmatch(
        r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'.*", str(error)
    )
    if match:
        sections = {cls.__name__: cls for cls in (Config, *_sections())}
        cls = sections.get(match[1])
        if cls is not None:
            names = [field.name for field in dataclasses.fields(cls)]
            return InputError(
                f"config {path}: no field {match[2]!r}: {match[1]} has "
                f"{', '.join(names)}{_suggest(match[2], names)}"
            )
    if "required keyword-only argument" in str(error):
        return InputError(f"config {path}: {error}")
    if _raised_by_a_section(error):  # Its checks met a value of another type.
        return InputError(f"config {path}: a field has the wrong type: {error}")
    return error


def _raised_by_a_section(error: TypeError) -> bool:
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code.co_name == "__post_init__"


def _sections() -> Iterator[type]:
    for hint in _hints(Config).values():
        yield from (cls for cls in _alternatives(hint) if cls is not types.NoneType)


def _flatten(config: Config) -> Iterator[tuple[str, Any]]:
    for section, fields in to_dict(config).items():
        for name, value in (fields or {}).items():
            yield f"{section}.{name}", value


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"{_type_name(typing.get_args(hint)[0])},..."
    return hint.__name__


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _meanings(cls: type) -> dict[str, str]:
    """The docstring under each field; Python keeps them in the source only."""
    meanings = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= _own_meanings(base)
    return meanings


def _own_meanings(cls: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
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
