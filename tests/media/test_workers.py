"""Tests of jaxload.media.workers."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from jaxload.errors import InputError
from jaxload.media.child import ChildError
from jaxload.media.encode_step import EncodeStep
from jaxload.media.workers import Task, run_in_processes


@dataclasses.dataclass(frozen=True)
class Write:
    """Task that reports three files, then writes its process id to a file."""

    path: Path

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        for _ in range(3):
            on_file()
        self.path.write_text(str(os.getpid()))
        return ()


@dataclasses.dataclass(frozen=True)
class Die:
    """Task that kills its process."""

    path: Path
    by: int = signal.SIGKILL

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        os.kill(os.getpid(), self.by)
        return ()


@dataclasses.dataclass(frozen=True)
class Fail:
    """Task that raises an error."""

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        raise InputError("the disk is full; free some space")


def never(task: Task, how: str) -> Task:
    raise AssertionError(f"{task} died: {how}")


def test_runs_every_task_on_several_processes(tmp_path: Path):
    tasks = [Write(tmp_path / str(i)) for i in range(7)]
    calls: list[int] = []
    run_in_processes(
        tasks, num_workers=2, on_file=lambda: calls.append(1), recover=never
    )
    assert len(calls) == 21
    pids = {(tmp_path / str(i)).read_text() for i in range(7)}
    assert 1 <= len(pids) <= 2
    assert str(os.getpid()) not in pids


def test_a_worker_that_dies_is_replaced(tmp_path: Path):
    deaths: list[str] = []

    def recover(task: Task, how: str) -> Task:
        assert isinstance(task, Die)
        deaths.append(how)
        return task if len(deaths) == 1 else Write(task.path)

    tasks = [Write(tmp_path / "a"), Die(tmp_path / "b"), Write(tmp_path / "c")]
    run_in_processes(tasks, num_workers=2, on_file=lambda: None, recover=recover)
    assert deaths == ["killed by SIGKILL"] * 2
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}


def test_what_a_task_raises_is_raised_here(tmp_path: Path):
    with pytest.raises(InputError, match="the disk is full; free some space") as error:
        run_in_processes(
            [Write(tmp_path / "a"), Fail()],
            num_workers=1,
            on_file=lambda: None,
            recover=never,
        )
    assert "in __call__" in error.value.__notes__[0]  # Where it was raised.


class Odd(Exception):
    """Exception that cannot be unpickled, because it needs two arguments."""

    def __init__(self, first: str, second: str):
        super().__init__(f"{first}, {second}")


@dataclasses.dataclass(frozen=True)
class FailOddly:
    """Task that raises an exception that cannot be sent to another process."""

    is_local: bool

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        class LocalError(Exception):
            pass

        raise LocalError("the reason") if self.is_local else Odd("the", "reason")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (FailOddly(is_local=False), "^Odd: the, reason"),
        (FailOddly(is_local=True), "^LocalError: the reason"),
    ],
)
def test_an_exception_of_any_type_arrives_and_blames_no_file(task: Task, message: str):
    with pytest.raises(ChildError, match=message) as error:
        run_in_processes([task], num_workers=1, on_file=lambda: None, recover=never)
    assert "in __call__" in error.value.__notes__[0]


@dataclasses.dataclass(frozen=True)
class DieOnce:
    """Task of five files that kills its process after three, the first time."""

    flag: Path

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        for i in range(5):
            if i == 3 and not self.flag.exists():
                self.flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            on_file()
        return ()


def test_files_of_a_repeated_task_count_once(tmp_path: Path):
    calls: list[int] = []
    run_in_processes(
        [DieOnce(tmp_path / "flag")],
        num_workers=1,
        on_file=lambda: calls.append(1),
        recover=lambda task, how: task,
    )
    assert len(calls) == 5


@dataclasses.dataclass(frozen=True)
class EndLate:
    """Task whose process needs another worker's progress before it can exit."""

    folder: Path

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        threading.Thread(target=self._linger).start()  # Exiting waits for threads.
        return ()

    def _linger(self) -> None:
        threading.main_thread().join()
        (self.folder / "exits").touch()
        wait_until((self.folder / "counted").exists)
        (self.folder / "ended").touch()


@dataclasses.dataclass(frozen=True)
class ReportLate:
    """Task that reports a file while another worker exits."""

    folder: Path

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        wait_until((self.folder / "exits").exists)
        on_file()
        return ()


def test_messages_are_handled_while_an_idle_worker_exits(tmp_path: Path):
    run_in_processes(
        [ReportLate(tmp_path), EndLate(tmp_path)],
        num_workers=2,
        on_file=(tmp_path / "counted").touch,
        recover=never,
    )
    assert (tmp_path / "ended").exists()


PROGRAM = """
import os, sys, time
from pathlib import Path
from jaxload.media.workers import run_in_processes
from tests.media.test_workers import Sleep

if __name__ == "__main__":
    path = Path(sys.argv[1])
    run_in_processes(
        [Sleep(path)] * 2, num_workers=2, on_file=lambda: None, recover=lambda t, h: t
    )
"""


@dataclasses.dataclass(frozen=True)
class Sleep:
    """Task that records its process id, then runs for a minute."""

    path: Path

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        (self.path / str(os.getpid())).touch()
        for _ in range(6_000):
            time.sleep(0.01)
            on_file()
        return ()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_commands(
    how: int, tmp_path: Path, root: Path
):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    pids = tmp_path / "pids"
    pids.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, str(script), str(pids)],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: len(list(pids.iterdir())) == 2)
    # Again if need be, as people press Ctrl-C again: an exception that Python raises in
    # a callback of its own is lost.
    for _ in range(12):
        process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            break
    assert process.poll() is not None
    workers = [path.name for path in pids.iterdir()]
    wait_until(lambda: not any(Path("/proc", pid).exists() for pid in workers))


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "waited for 30 s in vain"
        time.sleep(0.02)
