"""Tests of jaxload.interrupts: SIGINT and SIGTERM at moments that Python cannot see."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest

from jaxload import interrupts
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.manifest import Manifest
from jaxload.training.events import STEP, read_events
from jaxload.training.intact import newest_intact
from tests.runs.stuck_commands import STUCK, assert_one_line, started, wait_for

DEBUG = Path(__file__).parents[1] / "configs" / "debug.py"

# The digests of the first checkpoint take until a file appears.
SLOW_CHECKPOINT = """
import pathlib, runpy, sys, time
from jaxload.training import checkpoint

write = checkpoint.write_digests
go_on = pathlib.Path(sys.argv.pop(1))
def write_late(directory):
    print("writing", directory.name, flush=True)
    while not go_on.exists():
        time.sleep(0.01)
    write(directory)

checkpoint.write_digests = write_late
name, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(name, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train", ["--workdir", "{tmp}/run"]),
        ("train", ["--dry-run"]),
        ("plan", ["--set", "balance.max_bytes=100000000"]),
        ("calibrate", ["--out", "{tmp}/calibration.json"]),
    ],
    ids=["train", "dry-run", "plan", "calibrate"],
)
@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGINT]], ids=["one", "two"]
)
def test_an_interrupted_compilation_ends_the_command(
    debug_config: Config,
    debug_manifest: Manifest,
    tmp_path: Path,
    name: str,
    arguments: list[str],
    signals: list[signal.Signals],
):
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    arguments += ["--config", str(DEBUG)]
    arguments += ["--set", f"data.path={debug_config.data.path}"]
    with started(STUCK, f"jaxload.{name}", *arguments) as process:
        wait_for(process, "compiling for ever")
        for number in signals:
            process.send_signal(number)
        assert_one_line(process, f"jaxload.{name}")


@pytest.mark.slow
def test_a_checkpoint_in_progress_is_finished(
    debug_config: Config, debug_manifest: Manifest, tmp_path: Path
):
    workdir, go_on = tmp_path / "run", tmp_path / "go on"
    arguments = ["--config", str(DEBUG), "--workdir", str(workdir)]
    for field in (f"data.path={debug_config.data.path}", "train.checkpoint_every=2"):
        arguments += ["--set", field]
    with started(SLOW_CHECKPOINT, str(go_on), "jaxload.train", *arguments) as process:
        wait_for(process, "writing 2.orbax-checkpoint-tmp")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        # Longer than a process gets that writes no checkpoint.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2.5 * interrupts.GRACE_SECONDS)
        go_on.touch()
        assert_one_line(process, "jaxload.train")
    checkpoints = workdir / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["2"]
    assert newest_intact(checkpoints, Console(quiet=True)) == 2
    assert len(read_events(workdir / "metrics.jsonl", STEP)) >= 2


FORKED = """
import os, signal, sys, time
from jaxload import command, interrupts

def main():
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
        print("forked", flush=True)
        time.sleep(600)
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    time.sleep(2 * interrupts.GRACE_SECONDS)
    return 7

command.run("test", main)
"""


@pytest.mark.slow
def test_a_signal_to_a_forked_child_does_not_end_its_parent():
    with started(FORKED) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 7, errors
    assert not errors


SWALLOWED = """
import ctypes, os, signal, threading, time
from jaxload import command

def main():
    print("ready", flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt as error:
        if mode == "error":
            raise RuntimeError("INTERNAL: CallFunction failed") from error
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 0

mode = os.environ["MODE"]
command.run("test", main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["error", "thread"])
def test_a_library_that_swallows_the_interrupt_delays_it_at_most(
    monkeypatch: pytest.MonkeyPatch, mode: str
):
    """Python itself would print a traceback, or wait for the thread."""
    monkeypatch.setenv("MODE", mode)
    with started(SWALLOWED) as process:
        wait_for(process, "ready")
        process.send_signal(signal.SIGINT)
        assert_one_line(process, "test")


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = threading.active_count()
    with interrupts.ending_on_signals(lambda: None):
        assert signal.getsignal(signal.SIGINT) is not before[0]
        (watcher,) = [
            thread for thread in threading.enumerate() if thread.daemon and thread.name
        ][-1:]
    watcher.join()
    assert threading.active_count() == threads
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == before
    assert not interrupts.received()
