"""Child processes that can compile for GPUs that are absent.

JAX reads its environment once, when it is imported, so the parent keeps its platform
and a child gets another. The parent sends one request, a line of JSON on the child's
stdin. The child sends replies, lines of JSON on a separate pipe, because libraries may
print to stdout and stderr. That output is shown if the child fails.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from jaxload.errors import InputError
from jaxload.targets.gpu import ENVIRONMENT

PLUGIN = Path(sys.prefix) / "h100"
"""Directory of JAX's CUDA plugin, if it is installed apart from other packages."""

_PLUGIN_MODULES = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
_INPUT_ERROR = "input_error"
_MAX_LOG_BYTES = 65_536
_NUM_LOG_LINES = 30

Request = dict[str, Any]
Reply = dict[str, Any]


# The environment.


def environment() -> dict[str, str]:
    """Returns the environment variables of a process that can compile for GPUs.

    The parent's JAX_* and XLA_* variables are left out, so that results depend only on
    the request. Flags may change the program or end the process. With a compilation
    cache, each entry prints a warning, because it cannot be read without a GPU.

    Raises:
        InputError: JAX's CUDA plugin is not installed.
    """
    path = os.pathsep.join([*_plugin_path(), *sys.path])
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_"))
    }
    # PYTHONSAFEPATH puts nothing before the parent's path, so that the child imports
    # the same code.
    return inherited | ENVIRONMENT | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _plugin_path() -> list[str]:
    if PLUGIN.is_dir():
        return [str(PLUGIN)]
    if any(map(_is_installed, _PLUGIN_MODULES)):
        return []
    version = metadata.version("jax")
    raise InputError(
        f"compiling for a GPU: expected JAX's CUDA plugin in {PLUGIN} or among the "
        f"installed packages, got none; run `{sys.executable} -m pip install --no-deps "
        f"--target {PLUGIN} jax-cuda13-plugin=={version} jax-cuda13-pjrt=={version}`"
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # The parent package is missing, too.
        return False


# The parent's side.


def run_python(*arguments: str) -> str:
    """Runs Python in a process that can compile for GPUs; returns its stdout.

    Raises:
        InputError: JAX's CUDA plugin is not installed.
        RuntimeError: The process failed; the message has its stderr.
    """
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    return done.stdout


def run_module(
    module: str, request: Mapping[str, Any], on_reply: Callable[[Reply], None]
) -> None:
    """Runs a module that calls `serve` in a child process, and waits for its end.

    `on_reply` gets each reply as soon as the reply arrives. If `on_reply` raises, or
    Ctrl-C is pressed, the child is killed; the child also ends when this process does.

    Raises:
        InputError: The child raised InputError, or JAX's CUDA plugin is not installed.
        RuntimeError: The child failed; the message has its last lines of output.
    """
    command = [sys.executable, "-m", module]
    with (
        tempfile.TemporaryFile() as log,
        _started(command, request, log) as (process, replies),
    ):
        for line in replies:
            if line.endswith("\n"):  # Otherwise the child was killed while writing.
                _deliver(json.loads(line), on_reply)
        if process.wait():
            raise RuntimeError(
                f"{' '.join(command)}: {_describe_exit(process.returncode)}; its last "
                f"lines:\n{_last_lines(log)}"
            )


@contextlib.contextmanager
def _started(
    command: list[str], request: Mapping[str, Any], log: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """Starts a child and sends the request; kills the child when the context ends.

    Yields the process, and its replies as a file of lines.
    """
    variables = environment()
    read, write = os.pipe()
    with os.fdopen(read) as replies:
        try:
            process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
            )
        finally:
            os.close(write)  # Replies end with the child, the only writer.
        try:
            _send(process, {"replies": write, "request": dict(request)})
            yield process, replies
        finally:
            _end(process)


def _send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    # If the child has ended already, its exit code says more than a broken pipe.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.kill()  # Does nothing if the process has been waited for.
    process.wait()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _deliver(reply: Reply, on_reply: Callable[[Reply], None]) -> None:
    if _INPUT_ERROR in reply:
        raise InputError(reply[_INPUT_ERROR])
    on_reply(reply)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"failed with exit code {code}"
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        return "was killed by SIGKILL, as the system does when memory runs out"
    return f"was ended by {name}"


def _last_lines(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _MAX_LOG_BYTES))
    lines = log.read().decode(errors="replace").splitlines()
    # XLA's stack traces have an empty line for each frame.
    return "\n".join([line for line in lines if line.strip()][-_NUM_LOG_LINES:])


# The child's side.


def serve(handle: Callable[[Request, Callable[[Reply], None]], None]) -> None:
    """Answers the one request of a process that called `run_module`.

    `handle` gets the request and a function that sends a reply, which `handle` calls
    once per result. An InputError from `handle` is raised in the parent.
    """
    message = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.set_inheritable(message["replies"], False)  # Grandchildren could keep it open.
    with os.fdopen(message["replies"], "w") as replies:

        def reply(result: Reply) -> None:
            replies.write(json.dumps(result) + "\n")
            replies.flush()

        try:
            handle(message["request"], reply)
        except InputError as error:
            reply({_INPUT_ERROR: str(error)})


def _end_with_parent() -> None:
    # Not sys.stdin.read: a thread that holds the lock of sys.stdin at exit is fatal.
    os.read(sys.stdin.fileno(), 1)  # Returns at the end of file, when the parent ends.
    os._exit(1)
