"""Tests of jaxload.child_signals, in a process whose first child is started here."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import multiprocessing, os, signal, time
from jaxload.child_signals import children_ignore_interrupts

def is_blocked():
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

def child(pipe):
    pipe.send(is_blocked())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    for _ in range(2):
        try:
            with children_ignore_interrupts():
                context.Process(target=child, args=(theirs,)).start()
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0)
                print("here")
        except KeyboardInterrupt:
            print("interrupted", ours.recv(), is_blocked())
"""


def test_children_block_interrupts_from_their_start(root: Path, tmp_path: Path):
    """Starting the first child starts a resource tracker, which unblocks SIGINT."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "here\ninterrupted True False\n" * 2, result.stderr
