"""Starts commands that wait for ever, and checks what they print when interrupted."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

STUCK = """
import ctypes, runpy, sys
import jax

def compile_for_ever(self, *args, **options):
    print("compiling for ever", flush=True)
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)

jax.stages.Lowered.compile = compile_for_ever
name, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(name, run_name="__main__")
"""
"""Runs a module whose compilations wait for ever, in C and without the global lock."""


@contextlib.contextmanager
def started(program: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """Runs a program in a new process, which is killed when the context ends."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen, text: str) -> None:
    """Waits for a line with a text; fails if the process ends without one."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    assert process.stderr is not None
    pytest.fail(process.stderr.read())


def assert_one_line(process: subprocess.Popen, name: str) -> None:
    """Waits for the end, far longer than it takes, and checks what was printed."""
    _, errors = process.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if line and "absl" not in line]
    assert len(lines) == 1, errors
    assert re.fullmatch(rf"{name}: interrupted; .*(start it again|--resume)", lines[0])
    assert process.returncode == 130
