"""Tests requests and replies, also when child or parent dies."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from jaxload import targets
from jaxload.errors import InputError
from jaxload.targets import child_process

CHILD = "answering_child"


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lets children start without the CUDA plugin, since they compile nothing."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr(child_process, "PLUGIN", tmp_path)


def ask(action: str, **request: Any) -> list[dict[str, Any]]:
    replies: list[dict[str, Any]] = []
    targets.run_module(CHILD, {"action": action, **request}, replies.append)
    return replies


# Replies.


def test_replies_arrive_in_order():
    values = [1, None, 0.1, "ä\n", [{"a": []}], "x" * 200_000]
    assert ask("echo", values=values) == [{"value": value} for value in values]
    assert ask("echo", values=[]) == []


def test_each_reply_arrives_before_the_next_is_made(tmp_path: Path):
    files = [str(tmp_path / name) for name in "abc"]
    request = {"action": "wait_for_files", "files": files}
    targets.run_module(CHILD, request, lambda reply: Path(reply["file"]).touch())
    assert all(map(os.path.exists, files))


def test_output_of_a_child_is_not_a_reply():
    assert ask("chatter") == [{"value": "replied"}]


# Failures.


def test_input_error_is_raised_in_the_parent():
    message = "^model.width=7: expected a multiple of 2; choose another$"
    replies: list[dict[str, Any]] = []
    with pytest.raises(InputError, match=message):
        targets.run_module(CHILD, {"action": "refuse"}, replies.append)
    assert replies == [{"value": 1}]


def test_failure_shows_the_last_lines():
    with pytest.raises(RuntimeError) as caught:
        ask("fail")
    assert "-m answering_child: failed with exit code 1; its last lines:\n" in str(
        caught.value
    )
    assert str(caught.value).endswith("ZeroDivisionError: a bug")
    assert "a line before the request is read" in str(caught.value)


def test_only_the_last_lines_are_shown():
    with pytest.raises(RuntimeError) as caught:
        ask("fail", lines=20_000)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 30
    assert "line 19999 \ufffd" in lines
    assert "line 19900 \ufffd" not in lines
    assert lines[-1] == "ZeroDivisionError: a bug"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SIGABRT", "was ended by SIGABRT; its last lines:\n.*out of luck"),
        ("SIGKILL", "was killed by SIGKILL, as the system does when memory runs out;"),
    ],
)
def test_a_signal_is_named(name: str, message: str):
    with pytest.raises(RuntimeError, match=f"(?s)-m answering_child: {message}"):
        ask("die", signal=name)


def test_a_partial_reply_is_ignored():
    replies: list[dict[str, Any]] = []
    with pytest.raises(RuntimeError, match="exit code 3"):
        targets.run_module(CHILD, {"action": "break_off"}, replies.append)
    assert replies == [{"value": 1}]


def test_a_missing_module_is_reported():
    request = {"text": "x" * 1_000_000}  # More than a pipe holds.
    with pytest.raises(RuntimeError, match="No module named no_such_module"):
        targets.run_module("no_such_module", request, print)


# Termination of the child.


def test_child_is_killed_when_the_parent_raises():
    pids: list[int] = []

    def interrupt(reply: dict[str, Any]) -> None:
        pids.append(reply["pid"])
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        targets.run_module(CHILD, {"action": "wait"}, interrupt)
    assert time.monotonic() - start < 30  # Killed; it would sleep for 60 s.
    assert not Path("/proc", str(pids[0])).exists()  # Not even as a zombie.


PARENT = f"""
import signal, sys
# Processes that a shell starts in the background ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxload.targets import child_process, run_module
from pathlib import Path
child_process.PLUGIN = Path(sys.argv[1])
run_module({CHILD!r}, {{"action": "wait"}}, lambda r: print(r["pid"], flush=True))
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts a parent process that prints the process id of its waiting child."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_child_ends_with_its_parent(name: str, parent: subprocess.Popen[str]):
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.send_signal(getattr(signal, name))  # Only to the parent.
    _, stderr = parent.communicate(timeout=20)
    assert parent.returncode == -getattr(signal, name)
    if name == "SIGINT":
        assert stderr.endswith("KeyboardInterrupt\n")
        assert not Path("/proc", str(pid)).exists()
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


# The environment.


def test_variables_of_the_parent_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    monkeypatch.setenv("HOME", "/home/somebody")
    (reply,) = ask("describe")
    variables = reply["environment"]
    found = {n: v for n, v in variables.items() if n.startswith(("JAX_", "XLA_"))}
    assert found == {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    }
    assert variables["HOME"] == "/home/somebody"


def test_child_has_the_import_path_of_the_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "jaxload.py").write_text("raise ImportError('another jaxload')")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(elsewhere)
    (reply,) = ask("describe")
    expected = list(dict.fromkeys([str(tmp_path), *sys.path]))  # Each path once.
    assert reply["path"][: len(expected)] == expected


def test_plugin_may_be_installed_with_the_other_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    plugin = tmp_path / "jax_plugins" / "xla_cuda13"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(child_process, "PLUGIN", tmp_path / "h100")
    # Restores sys.modules afterwards. An imported jax_plugins would have another path.
    monkeypatch.setitem(sys.modules, "jax_plugins", ModuleType("jax_plugins"))
    del sys.modules["jax_plugins"]
    path = child_process.environment()["PYTHONPATH"].split(os.pathsep)
    assert path == sys.path


def test_message_for_a_missing_plugin_has_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    without_plugin(monkeypatch)
    monkeypatch.setattr(child_process, "PLUGIN", tmp_path / "h100")
    command = (
        f"{sys.executable} -m pip install --no-deps --target {tmp_path}/h100 "
        f"jax-cuda13-plugin=={jax.__version__} jax-cuda13-pjrt=={jax.__version__}"
    )
    message = (
        f"^compiling for a GPU: expected JAX's CUDA plugin in {tmp_path}/h100 or among "
        f"the installed packages, got none; run `{command}`$"
    )
    with pytest.raises(InputError, match=message):
        ask("echo", values=[])


def without_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine without the CUDA plugin."""

    def find_spec(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
