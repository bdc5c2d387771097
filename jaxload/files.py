"""Atomic writes, JSON files and checks of paths."""

import contextlib
import json
import os
import resource
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxload.errors import InputError

_MAX_JSON_BYTES = 64 * 2**20  # Parsed, JSON takes up to thirty times its size.
_MAX_JSON_DEPTH = 64


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, which replaces `path` when the context ends.

    A reader sees the old content or the new, never a part, even after a power failure.
    """
    with _partial(path) as partial:
        yield partial
        _flush(partial)
        os.replace(partial, path)


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yields a path beside `path`, and removes what remains there at the end."""
    # One name per process, because several processes may write the same file.
    partial = path.with_name(f".{path.name}.{os.getpid()}{_host()}.partial")
    try:
        yield partial
    except OSError as error:
        ours = (None, str(partial), str(partial.parent))
        if error.filename not in ours:  # Another file, which was read.
            raise
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); choose another "
            "path"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # It may have been renamed.
            partial.unlink()


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def written_once(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, which becomes `path` unless that exists.

    Of several processes that write the same path at once, the first to finish wins; the
    others find its file.
    """
    with _partial(path) as partial:
        yield partial
        _flush(partial)
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)  # Atomic.


def remove_leftovers(directory: Path) -> None:
    """Removes partial files that killed processes of this machine left behind."""
    for partial in directory.glob(f".*{_host()}.partial"):
        pid = partial.name.removesuffix(f"{_host()}.partial").rpartition(".")[2]
        if not _is_alive(pid):
            partial.unlink(missing_ok=True)


def _is_alive(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")  # Dead, but not yet reaped.


def _host() -> str:
    """Returns the host name and the PID namespace, which containers do not share."""
    namespace = Path("/proc/self/ns/pid").resolve().name.strip("pid:[]")
    return f"@{socket.gethostname()}-{namespace}"


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Replaces a file's content with text, atomically."""
    with replaced(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines([text] if isinstance(text, str) else text)


def parse_json(text: str | bytes) -> Any:
    """Parses JSON of bounded size and depth, from anywhere.

    Raises:
        ValueError: The text is not such JSON; the message is short and fits on a line.
    """
    if len(text) > _MAX_JSON_BYTES:
        raise ValueError(f"expected at most {_MAX_JSON_BYTES:,} bytes")
    too_deep = f"expected at most {_MAX_JSON_DEPTH} levels of lists and objects"
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(too_deep) from error
    # Code that walks a value may be recursive, so far fewer levels are allowed than
    # the parser takes.
    level = _inner([content])
    for _ in range(_MAX_JSON_DEPTH):
        level = _inner(child for parent in level for child in parent)
        if not level:
            return content
    raise ValueError(too_deep)


def _inner(values: Iterable[Any]) -> list[Iterable[Any]]:
    """Returns the children of each list and object among `values`."""
    return [
        value.values() if isinstance(value, dict) else value
        for value in values
        if isinstance(value, (dict, list))
    ]


def read_json(path: Path, *, remedy: str, kind: str = "") -> dict[str, Any]:
    """Reads a JSON object that a command wrote.

    Error messages start with the `kind` of file, if given, and end with `remedy`.
    """
    name = f"{kind} {path}" if kind else str(path)
    try:
        with path.open("rb") as file:
            content = parse_json(file.read(_MAX_JSON_BYTES + 1))
    except OSError as error:
        raise InputError(
            f"{name}: cannot be read ({error.strerror}); {remedy}"
        ) from error
    except ValueError as error:  # Not UTF-8, not JSON, too large or too deep.
        raise InputError(f"{name}: not JSON ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{name}: expected a JSON object, got {content!r:.80}; {remedy}"
        )
    return content


def allow_open_files(count: int) -> None:
    """Raises this process's limit of open files to `count`, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise InputError(
            f"expected a limit of at least {count} open files, got {hard}; raise it "
            "with ulimit -Hn"
        )
    if soft != resource.RLIM_INFINITY and count > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def check_writable(path: Path) -> None:
    """Refuses a path that cannot be written, before any work is done."""
    if path.is_dir():
        raise InputError(f"{path}: expected a file to write, got a directory")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); choose another path"
        ) from error
