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


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, which replaces `path` when the context ends.

    A reader sees the old content or the new, never a part, even after a power failure.
    """
    # One name per process, because several processes may write the same file.
    partial = path.with_name(f".{path.name}.{os.getpid()}{_host()}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); choose another "
            "path"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # The file exists only after a failure.
            partial.unlink()


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
    with replaced(path) as partial, partial.open("w") as file:
        file.writelines([text] if isinstance(text, str) else text)


def read_json(path: Path, *, remedy: str) -> dict[str, Any]:
    """Reads a JSON object that a command wrote; error messages end with `remedy`."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); {remedy}"
        ) from error
    except ValueError as error:  # Not UTF-8, or not JSON.
        raise InputError(f"{path}: not JSON ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object, got {content!r}; {remedy}")
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
