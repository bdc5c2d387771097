"""Config of a run: reads, overrides, compares and explains it."""

import dataclasses
import re
import runpy
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxload import field_help, field_paths, field_types
from jaxload.balance.config import BalanceConfig
from jaxload.data.config import DataConfig
from jaxload.errors import InputError
from jaxload.field_help import FieldHelp
from jaxload.media.config import SyntheticConfig
from jaxload.models.families import ModelConfig
from jaxload.models.presets import preset
from jaxload.parallel.config import MeshConfig
from jaxload.sampling.config import SampleConfig
from jaxload.shapes.config import ShapeRules
from jaxload.training.config import FlowConfig, OptimizerConfig, TrainConfig

Section = TypeVar("Section")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Config of one run. Each section is defined in the package that it configures."""

    data: DataConfig
    synthetic: SyntheticConfig | None = None
    model: ModelConfig
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    balance: BalanceConfig
    shapes: ShapeRules = dataclasses.field(default_factory=ShapeRules)
    flow: FlowConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    sample: SampleConfig


def load(path: str | Path) -> Config:
    """Returns the result of a config file's `get_config()`, with all types checked."""
    path = Path(path)
    if not path.is_file():
        what = "expected a file, got a directory" if path.is_dir() else "no such file"
        siblings = [str(p) for p in sorted(path.parent.glob("*.py"))]
        raise InputError(
            f"config {path}: {what}{field_types.suggest(str(path), siblings)}"
        )
    try:
        get_config = runpy.run_path(str(path)).get("get_config")
    except SyntaxError as error:
        raise InputError(
            f"config {path}: line {error.lineno}: {error.msg}; correct the file"
        ) from error
    except (ImportError, NameError) as error:
        raise _name_error(path, error) from error
    if not callable(get_config):
        raise InputError(
            f"config {path}: expected a function get_config() that returns a Config, "
            "found none"
        )
    try:
        config = get_config()
    except (ImportError, NameError) as error:
        raise _name_error(path, error) from error
    except (AttributeError, TypeError) as error:
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
    """Applies assignments `section.field=value`, in order."""
    for assignment in assignments:
        config = override(config, assignment)
    return config


def override(config: Config, assignment: str) -> Config:
    """Applies `section.field=value`, or `model=PRESET`.

    The value is parsed as the field's type. A path may lead into nested sections, and
    by index into tuples of sections: `optimizer.groups.0.learning_rate=1e-4`.
    """
    path, equals, text = assignment.partition("=")
    names = [field.name for field in dataclasses.fields(Config)]
    if not equals or ("." not in path and path not in names):
        raise InputError(
            f"--set {assignment}: expected section.field=value"
            f"{_suggest_path(config, path)}"
        )
    if path == "model":
        return dataclasses.replace(config, model=preset(text))
    return field_paths.assign(config, path, text)


def to_dict(config: Config) -> dict[str, Any]:
    """Returns a config as nested dictionaries and tuples, which JSON can hold."""
    return dataclasses.asdict(config)


def from_dict(content: Mapping[str, Any]) -> Config:
    """Builds a config from nested dictionaries, checking names and types."""
    return field_types.build(Config, content, path="")


def section_from_dict(section: type[Section], content: Any, path: str) -> Section:
    """Builds one section from nested dictionaries; `path` names it in messages."""
    return field_types.build(section, content, path=path)


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Returns the fields in which two configs differ, by path, with both values."""
    found = sorted(field_paths.differences(old, new), key=lambda row: row[0])
    return {path: (there, here) for path, there, here in found}


def may_change_on_resume(path: str) -> bool:
    """Returns whether a resumed run may change the field at a path.

    The field, or an enclosing field, must be marked with `jaxload.fields.RESUMABLE`.
    """
    return field_paths.may_change_on_resume(Config, path)


def describe(config: Config) -> list[FieldHelp]:
    """Lists every field of a config with its type, value and meaning."""
    return list(field_help.describe(config))


def _suggest_path(config: Config, name: str) -> str:
    """Suggests the first field with this name in any section, or a similar path."""
    for leaf in field_paths.leaves(config):
        if leaf.name == name:
            return f"; did you mean {leaf.path!r}?"
    return field_types.suggest(name, (leaf.path for leaf in field_paths.leaves(config)))


def _name_error(path: Path, error: Exception) -> InputError:
    """Builds an error that names the line of a config file that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    where = f"line {lines[-1]}: " if lines else ""
    return InputError(f"config {path}: {where}{error}; correct the file")


def _construction_error(path: Path, error: Exception) -> Exception:
    """Explains an error from building a section; returns any other error unchanged."""
    match = re.fullmatch(
        r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'.*", str(error)
    )
    if match:
        sections = {cls.__name__: cls for cls in field_types.all_sections(Config)}
        cls = sections.get(match[1])
        if cls is not None:
            names = [field.name for field in dataclasses.fields(cls)]
            return InputError(
                f"config {path}: no field {match[2]!r}: {match[1]} has "
                f"{', '.join(names)}{field_types.suggest(match[2], names)}"
            )
    if "required keyword-only argument" in str(error):
        return InputError(f"config {path}: {error}")
    if _raised_by_a_section(error):  # A section's checks met a wrong type.
        return InputError(f"config {path}: a field has the wrong type: {error}")
    return error


def _raised_by_a_section(error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == "__post_init__" for frame, _ in frames)
