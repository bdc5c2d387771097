"""Runs commands in sessions of their own, and interrupts them as a terminal does."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def start(arguments: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    """Starts a command as the leader of a new process group."""
    return subprocess.Popen(
        arguments,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupt(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Sends SIGINT to the group of a process, and waits for all its processes to end.

    Returns the exit code, and the lines of the standard error output that are not
    empty.
    """
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    wait_until(lambda: not members(process.pid))
    return process.returncode, [line for line in errors.splitlines() if line]


def members(group: int) -> list[Path]:
    """Returns the directories in /proc of the running processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text()
        except OSError:  # It has ended.
            continue
        state, _, process_group = stat.rpartition(")")[2].split()[:3]
        if int(process_group) == group and state != "Z":
            found.append(path)
    return found


def num_children(group: int) -> int:
    """Counts the processes that multiprocessing has started and that import modules."""
    found = 0
    for path in members(group):
        with contextlib.suppress(OSError):  # It has ended.
            is_child = "spawn_main" in (path / "cmdline").read_text()
            found += is_child and "_multiarray_umath" in (path / "maps").read_text()
    return found


def wait_until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    """Waits until a condition holds; fails after a generous time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited for {seconds:.0f} s in vain"
        time.sleep(0.01)
