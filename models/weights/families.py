"""Tensor names of all families; matches the tensors of files to parameters."""

from collections.abc import Collection, Mapping
from pathlib import Path

from jaxload import files as whole_files
from jaxload.errors import InputError
from jaxload.models.families import ModelConfig, families, family_of
from jaxload.models.weights.configs import CLASS_NAME, Fields
from jaxload.models.weights.files import DTYPES, Stored
from jaxload.models.weights.names import (
    PREFIX,
    PREFIXES,
    Naming,
    ParameterPath,
    Shape,
    Tensor,
    WeightNames,
    tensors_of,
)

_MAX_SHOWN = 10


def weights_of(config: object) -> WeightNames:
    """Returns the tensor names of a model's config.

    Raises:
        InputError: The model's family has no weight files.
    """
    family = family_of(config)
    if family.weights is None:
        raise InputError(
            f"model family {family.name!r}: expected tensor names for weight files, "
            "got none; define them as `weights` in its Family"
        )
    return family.weights()


def _all_weights() -> list[WeightNames]:
    return [family.weights() for family in families() if family.weights]


def read_config(path: Path) -> ModelConfig:
    """Reads a config.json of any known family into a model config."""
    if not path.is_file():
        raise InputError(
            f"{path}: expected a file with the sizes of the model, found none; pass "
            "the config to load()"
        )
    content = whole_files.read_json(path, remedy="download it again")
    name = content.get(CLASS_NAME)
    readers = {n: read for w in _all_weights() for n, read in w.read_config.items()}
    if not isinstance(name, str) or name not in readers:
        raise InputError(
            f"{path}: {CLASS_NAME}: expected {' or '.join(readers)}, got {name!r:.80}; "
            "pass the config to load()"
        )
    fields = Fields(path, content)
    try:
        return readers[name](fields)
    except InputError as error:
        if str(error).startswith(str(path)):
            raise
        # The sizes are valid one by one, but not together.
        raise InputError(f"{path}: {error}") from error


def match(
    path: Path,
    config: ModelConfig,
    shapes: Mapping[ParameterPath, Shape],
    found: Mapping[str, Stored],
) -> dict[str, tuple[Tensor, Stored]]:
    """Finds each of a model's tensors in files, with the naming that matches most.

    Raises:
        InputError: Tensors are missing, unexpected, repeated, or of another shape or
            dtype; the message lists them.
    """
    weights = weights_of(config)
    names: dict[str, str] = {}
    repeated: list[str] = []
    for name in sorted(found):
        bare = _without_prefix(name)
        repeated += [name] if names.setdefault(bare, name) != name else []
    by_naming: dict[Naming, dict[str, Tensor]] = {
        "diffusers": tensors_of(weights, "diffusers", shapes),
        "original": tensors_of(weights, "original", shapes),
    }
    if weights.comfyui:
        by_naming["comfyui"] = {
            _comfyui(weights, name): tensor
            for name, tensor in by_naming["original"].items()
        }
    naming = max(by_naming, key=lambda n: len(by_naming[n].keys() & names.keys()))
    expected = by_naming[naming]
    common = [name for name in expected if name in names]
    if not common:
        raise InputError(
            f"{path}: expected tensors of {weights.title}, got others: "
            f"{_some(sorted(found))}; give a file of "
            f"{' or '.join(w.title for w in _all_weights())} with diffusers, original "
            f"or ComfyUI names, which may begin with {PREFIX}"
        )
    pairs = {name: (expected[name], found[names[name]]) for name in common}
    problems = {
        "missing": sorted(expected.keys() - names.keys()),
        "unexpected": sorted(
            names[name]
            for name in names.keys() - expected.keys()
            if not weights.ignored.fullmatch(name)
        ),
        "present twice, with and without a prefix": repeated,
        "misshapen": [
            f"{names[name]} (expected {list(tensor.shape)}, got {list(stored.shape)})"
            for name, (tensor, stored) in pairs.items()
            if tensor.shape != stored.shape
        ],
        f"of a dtype other than {', '.join(DTYPES)}": [
            f"{names[name]} ({stored.dtype})"
            for name, (_, stored) in pairs.items()
            if stored.dtype not in DTYPES
        ],
    }
    what = f"this {type(config).__name__}, by the {naming} names of {weights.title}"
    _check(path, what, problems)
    return pairs


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _comfyui(weights: WeightNames, original: str) -> str:
    for part, other in weights.comfyui:
        original = original.replace(part, other)
    return original


def _check(path: Path, what: str, problems: Mapping[str, Collection[str]]) -> None:
    if not any(problems.values()):
        return
    lines = [
        f"{len(names)} {problem}: {_some(names)}"
        for problem, names in problems.items()
        if names
    ]
    raise InputError(
        f"{path}: expected the tensors of {what}, got others; give the config that "
        "the file was made with\n  " + "\n  ".join(lines)
    )


def _some(names: Collection[str]) -> str:
    rest = len(names) - _MAX_SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(f"{name:.200}" for name in list(names)[:_MAX_SHOWN]) + more
