"""On-disk cache of slow results, keyed by everything that they depend on."""

import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxload.errors import InputError
from jaxload.files import check_writable, read_json, remove_leftovers, write_atomically

_PACKAGE = Path(__file__).parents[1]

# Libraries that affect compiled programs. The CUDA plugin is not listed because JAX
# refuses a plugin of another version than its own.
_DEPENDENCIES = ("flax", "jax", "jaxlib", "optax")


class ResultCache:
    """Results by key, one small file each. Several processes may share a directory.

    Keys and results have to be JSON objects. A key has to name everything that the
    result depends on: the request, the target, and `source_digest()` for the code.
    """

    def __init__(self, directory: Path) -> None:
        """Creates the directory.

        Raises:
            InputError: The directory cannot be created or written.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{directory}: cannot be created ({error.strerror}); set "
                "XDG_CACHE_HOME to a directory that can be written"
            ) from error
        check_writable(directory / "result.json")
        remove_leftovers(directory)
        self._directory = directory

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the result of a key, or None if its file is missing or damaged."""
        try:
            stored = read_json(self._path(key), remedy="")
        except InputError:
            return None
        # Two keys could share a digest, and a file could have been copied or edited.
        if _canonical(stored.get("key")) != _canonical(dict(key)):
            return None
        result = stored.get("result")
        return result if isinstance(result, dict) else None

    def put(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Stores a result, and replaces any earlier result of the key."""
        text = json.dumps({"key": dict(key), "result": dict(result)})
        write_atomically(self._path(key), text + "\n")

    def _path(self, key: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(_canonical(dict(key)).encode()).hexdigest()
        return self._directory / f"{digest}.json"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def default_directory() -> Path:
    """Returns the directory of cached results, below $XDG_CACHE_HOME if that is set.

    Raises:
        InputError: The variable is not set, and the user has no home directory.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # The XDG standard ignores relative paths.
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise InputError(
                "cache of results: expected a home directory, got none; set "
                "XDG_CACHE_HOME to a directory that can be written"
            ) from error
    return base / "jaxload" / "targets"


@functools.cache
def source_digest() -> str:
    """Returns a digest of the code that computes results, as of the first call.

    The digest covers the Python files of jaxload, its compiled extension if there is
    one, and the versions of the libraries that build and compile programs.
    """
    extension = importlib.util.find_spec("jaxload._ffi")
    origin = extension.origin if extension else None
    versions = {name: metadata.version(name) for name in _DEPENDENCIES}
    return _digest(_PACKAGE, Path(origin) if origin else None, versions)


def _digest(package: Path, extension: Path | None, versions: dict[str, str]) -> str:
    digest = hashlib.sha256(_canonical(versions).encode())
    files = {str(path.relative_to(package)): path for path in _python_files(package)}
    if extension is not None:
        files["extension"] = extension
    for name, path in sorted(files.items()):
        # A digest per file, so that moving bytes between files changes the result.
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def _python_files(package: Path) -> Iterator[Path]:
    # jaxload/models is a symbolic link, which Path.glob would not follow.
    for directory, directories, names in os.walk(package, followlinks=True):
        if Path(directory) == package and "configs" in directories:
            directories.remove("configs")  # A result's key has the config's values.
        paths = (Path(directory, name) for name in names if name.endswith(".py"))
        yield from (path for path in paths if path.is_file())  # Skips broken links.
