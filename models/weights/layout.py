"""Finds and writes weights on disk: a single file, or several files with an index."""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxload import files as whole_files
from jaxload.errors import InputError
from jaxload.models.weights import files
from jaxload.models.weights.configs import CLASS_NAME
from jaxload.models.weights.files import Described, Stored

CONFIG = "config.json"
_STEM = "diffusion_pytorch_model"
_SINGLE = f"{_STEM}.safetensors"
_INDEX_SUFFIX = ".safetensors.index.json"
_INDEX = _STEM + _INDEX_SUFFIX
_PART = re.compile(rf"{_STEM}-\d{{5}}-of-\d{{5}}\.safetensors")
_TRANSFORMER = "transformer"
_MAX_NAME = 255  # Bytes, as in most file systems.


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Safetensors files with the weights of one model."""

    path: Path
    """The safetensors file, or the index of several files."""

    index: Mapping[str, Path] | None = None
    """File of each tensor, by the tensor's name; None for a single file."""

    @property
    def config(self) -> Path:
        """Path of the config.json beside the weights; it may not exist."""
        return self.path.parent / CONFIG

    def tensors(self) -> dict[str, Stored]:
        """Reads the headers; returns all tensors by their names in the files.

        Raises:
            InputError: The files and the index name different tensors.
        """
        if self.index is None:
            return files.read_header(self.path)
        headers = {path: files.read_header(path) for path in set(self.index.values())}
        listed = {(path, name) for name, path in self.index.items()}
        found = {(path, name) for path, header in headers.items() for name in header}
        for problem, tensors in (
            ("that the file lacks", listed - found),
            ("that the index does not list", found - listed),
        ):
            if tensors:
                path, name = min(tensors)
                raise InputError(
                    f"{self.path}: expected each tensor in the file that it names, "
                    f"got {len(tensors)} {problem}, such as {name} in {path.name}; "
                    "download the index and its files again"
                )
        return {name: headers[path][name] for name, path in self.index.items()}


def find(path: Path) -> Checkpoint:
    """Finds the weights at a path: a file, an index, or a directory with either."""
    if path.is_dir():
        path = _find_in_directory(path)
    if not path.is_file():
        raise InputError(
            f"{path}: expected a .safetensors file, a {_INDEX_SUFFIX} or a directory, "
            "found nothing"
        )
    if path.name.endswith(_INDEX_SUFFIX):
        return Checkpoint(path, _read_index(path))
    if path.suffix == ".safetensors":
        return Checkpoint(path)
    raise InputError(
        f"{path}: expected a .safetensors file, a {_INDEX_SUFFIX} or a directory; "
        "convert other files first"
    )


def _find_in_directory(directory: Path) -> Path:
    for folder in (directory, directory / _TRANSFORMER):
        for name in (_INDEX, _SINGLE):
            if (folder / name).is_file():
                return folder / name
    for pattern in (f"*{_INDEX_SUFFIX}", "*.safetensors"):
        found = sorted(
            path for path in directory.glob(pattern) if not path.name.startswith(".")
        )
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(path.name for path in found[:10])
            raise InputError(
                f"{directory}: expected one model, got {len(found)} files: {names}; "
                "give the path of one of them, or of their index"
            )
    raise InputError(
        f"{directory}: expected {_SINGLE}, {_INDEX} or one other .safetensors file, "
        f"here or in {_TRANSFORMER}/, got none; give the path of a file"
    )


def _read_index(index: Path) -> dict[str, Path]:
    content = whole_files.read_json(index, remedy="download it again")
    weight_map = content.get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise InputError(
            f"{index}: expected a weight_map from tensors to files, got "
            f"{weight_map!r:.80}; download it again"
        )
    for tensor, name in weight_map.items():
        # Also refuses folders, so that an index names no file elsewhere.
        if not _is_plain(name) or "/" in name or not _is_plain(tensor):
            raise InputError(
                f"{index}: expected a weight_map from names of tensors to names of "
                f"files beside it, got {tensor!r:.80}: {name!r:.80}; download it again"
            )
    paths = {tensor: index.parent / name for tensor, name in weight_map.items()}
    parts = sorted(set(paths.values()))
    absent = [path.name for path in parts if not path.is_file()]
    if absent:
        raise InputError(
            f"{index}: expected {len(parts)} files beside it, found all but "
            f"{', '.join(absent[:10])}; download these, too"
        )
    return paths


def _is_plain(name: str) -> bool:
    """Returns whether a name can be shown, and be that of a file."""
    return name.isprintable() and 0 < len(name.encode()) <= _MAX_NAME


def holds_only_models(directory: Path) -> bool:
    """Returns True unless the directory has a config.json that is not a model's."""
    config = directory / CONFIG
    if not config.exists():
        return True
    return CLASS_NAME in whole_files.read_json(config, remedy="remove it")


def write(
    path: Path,
    tensors: Sequence[Described],
    chunks: Callable[[Described], Iterable[np.ndarray]],
    *,
    max_file_bytes: int,
    config: dict[str, object] | None,
) -> None:
    """Writes one file, or a directory of files of at most `max_file_bytes` each.

    All files are written under temporary names, and renamed once all are complete.
    Files of an earlier model are then replaced one by one. A process killed in between
    leaves a directory without index or config.json, never one that mixes two models.

    Args:
        path: The file if it ends in .safetensors, else the directory.
        tensors: The tensors to write, in order.
        chunks: Returns the content of a tensor, in chunks.
        max_file_bytes: Limit for each file of a directory; ignored for a single file.
        config: Content of the directory's config.json; None writes no config.json.
    """
    if path.suffix == ".safetensors":
        _write_files({path: list(tensors)}, chunks)
        return
    parts = _split(tensors, max_file_bytes)
    names = [_SINGLE]
    if len(parts) > 1:
        names = [
            f"{_STEM}-{i:05}-of-{len(parts):05}.safetensors"
            for i in range(1, len(parts) + 1)
        ]
    contents = {path / name: part for name, part in zip(names, parts, strict=True)}
    # Files of an earlier save are removed once the new ones have been written. Index
    # and config.json go first, so that they never describe a mix of old and new files.
    _write_files(contents, chunks, before_renaming=lambda: _remove_others(path, names))
    if config is not None:
        whole_files.write_atomically(path / CONFIG, json.dumps(config, indent=2) + "\n")
    if len(parts) > 1:
        _write_index(path, contents)


def _write_files(
    contents: dict[Path, list[Described]],
    chunks: Callable[[Described], Iterable[np.ndarray]],
    before_renaming: Callable[[], None] = lambda: None,
) -> None:
    for folder in {path.parent for path in contents}:
        whole_files.remove_leftovers(folder)
    with contextlib.ExitStack() as stack:
        for path, part in contents.items():
            partial = stack.enter_context(whole_files.replaced(path))
            partial.parent.mkdir(parents=True, exist_ok=True)
            # Not a generator: its loop variable would hold a chunk too long.
            files.write(partial, part, itertools.chain.from_iterable(map(chunks, part)))
        before_renaming()


def _split(tensors: Iterable[Described], max_bytes: int) -> list[list[Described]]:
    parts, size = [[]], 0
    for tensor in tensors:
        if parts[-1] and size + tensor.num_bytes > max_bytes:
            parts.append([])
            size = 0
        parts[-1].append(tensor)
        size += tensor.num_bytes
    return parts


def _remove_others(directory: Path, names: Sequence[str]) -> None:
    for name in (CONFIG, _INDEX):
        (directory / name).unlink(missing_ok=True)
    for path in directory.iterdir():
        ours = path.name == _SINGLE or _PART.fullmatch(path.name)
        if ours and path.name not in names:
            path.unlink()


def _write_index(directory: Path, contents: dict[Path, list[Described]]) -> None:
    tensors = [tensor for part in contents.values() for tensor in part]
    index = {
        "metadata": {"total_size": sum(tensor.num_bytes for tensor in tensors)},
        "weight_map": {
            tensor.name: path.name for path, part in contents.items() for tensor in part
        },
    }
    text = json.dumps(index, indent=2) + "\n"
    whole_files.write_atomically(directory / _INDEX, text)
