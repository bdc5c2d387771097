"""Known model families, and matching of the tensors in files to their parameters."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jaxload import files as whole_files
from jaxload.errors import InputError
from jaxload.models.weights.configs import CLASS_NAME, Fields
from jaxload.models.weights.files import DTYPES, Stored
from jaxload.models.weights.mmdit import MMDIT
from jaxload.models.weights.names import (
    PREFIX,
    PREFIXES,
    Family,
    Naming,
    ParameterPath,
    Shape,
    Tensor,
    tensors_of,
)
from jaxload.models.weights.wan import WAN

FAMILIES: tuple[Family, ...] = (WAN, MMDIT)
_MAX_SHOWN = 10


def family_of(config: Any) -> Family:
    """Returns the family of a model's config."""
    for family in FAMILIES:
        if isinstance(config, family.config):
            return family
    raise InputError(
        f"config: expected a {' or a '.join(f.config.__name__ for f in FAMILIES)}, got "
        f"a {type(config).__name__}"
    )


def read_config(path: Path) -> Any:
    """Reads a config.json of any known family into a model config."""
    if not path.is_file():
        raise InputError(
            f"{path}: expected the sizes of the model there, got no such file; give "
            "the config when you load"
        )
    content = whole_files.read_json(path, remedy="download it again")
    name = content.get(CLASS_NAME)
    readers = {n: read for f in FAMILIES for n, read in f.read_config.items()}
    if not isinstance(name, str) or name not in readers:
        raise InputError(
            f"{path}: {CLASS_NAME}: expected {' or '.join(readers)}, got {name!r}; "
            "give the config when you load"
        )
    return readers[name](Fields(path, content))


def match(
    place: Path,
    family: Family,
    shapes: Mapping[ParameterPath, Shape],
    found: Mapping[str, Stored],
) -> dict[str, tuple[Tensor, Stored]]:
    """Finds each of a model's tensors in files, in whichever naming matches most names.

    Raises:
        InputError: Tensors are missing, unexpected, repeated, or of another shape or
            dtype; the message lists them.
    """
    names: dict[str, str] = {}
    repeated: list[str] = []
    for name in sorted(found):
        bare = _without_prefix(name)
        repeated += [name] if names.setdefault(bare, name) != name else []
    by_naming: dict[Naming, dict[str, Tensor]] = {
        "diffusers": tensors_of(family, "diffusers", shapes),
        "original": tensors_of(family, "original", shapes),
    }
    if family.comfyui:
        by_naming["comfyui"] = {
            _comfyui(family, name): tensor
            for name, tensor in by_naming["original"].items()
        }
    naming = max(by_naming, key=lambda n: len(by_naming[n].keys() & names.keys()))
    expected = by_naming[naming]
    common = [name for name in expected if name in names]
    if not common:
        raise InputError(
            f"{place}: expected tensors of {family.title}, got others: "
            f"{_some(sorted(found))}; known are files of "
            f"{' and '.join(f.title for f in FAMILIES)}, with the names of diffusers, "
            f"the original ones or ComfyUI's, and with {PREFIX} before them or not"
        )
    pairs = {name: (expected[name], found[names[name]]) for name in common}
    problems = {
        "missing": sorted(expected.keys() - names.keys()),
        "unexpected": sorted(
            names[name]
            for name in names.keys() - expected.keys()
            if not family.ignored.fullmatch(name)
        ),
        "there twice, with a prefix and without": repeated,
        "misshapen": [
            f"{names[name]} (expected {list(tensor.shape)}, got {list(stored.shape)})"
            for name, (tensor, stored) in pairs.items()
            if tensor.shape != stored.shape
        ],
        f"of a type other than {', '.join(DTYPES)}": [
            f"{names[name]} ({stored.dtype})"
            for name, (_, stored) in pairs.items()
            if stored.dtype not in DTYPES
        ],
    }
    _check(place, family, naming, problems)
    return pairs


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _comfyui(family: Family, original: str) -> str:
    for part, other in family.comfyui:
        original = original.replace(part, other)
    return original


def _check(
    place: Path, family: Family, naming: Naming, problems: Mapping[str, Collection[str]]
) -> None:
    if not any(problems.values()):
        return
    lines = [
        f"{len(names)} {problem}: {_some(names)}"
        for problem, names in problems.items()
        if names
    ]
    raise InputError(
        f"{place}: expected the tensors of this {family.config.__name__}, by the "
        f"{naming} names of {family.title}, got others; give the config that the file "
        "was made with\n  " + "\n  ".join(lines)
    )


def _some(names: Collection[str]) -> str:
    rest = len(names) - _MAX_SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(list(names)[:_MAX_SHOWN]) + more
