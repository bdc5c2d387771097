"""Runs tasks in worker processes, any of which may die without ending the others."""

import contextlib
import dataclasses
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Protocol, runtime_checkable

# Spawn: JAX's threads do not survive a fork, and decoder libraries may not either.
_PROCESSES = multiprocessing.get_context("spawn")
_STOP_SECONDS = 5.0


@runtime_checkable
class Task(Protocol):
    """Unit of work that calls `on_file` after each file that it has finished."""

    def __call__(self, on_file: Callable[[], None]) -> None: ...


Recover = Callable[[Task, str], Task]
"""(task, how its worker died) -> task to run instead; raises to give up."""


@dataclasses.dataclass
class _Worker:
    """A worker process and its current task."""

    process: BaseProcess
    pipe: connection.Connection
    task: Task | None = None


def run_here(tasks: Sequence[Task], *, on_file: Callable[[], None]) -> None:
    """Runs tasks one after the other in this process."""
    for task in tasks:
        task(on_file)


def run_in_processes(
    tasks: Sequence[Task],
    *,
    num_workers: int,
    on_file: Callable[[], None],
    recover: Recover,
) -> None:
    """Runs tasks, at most `num_workers` at a time.

    A worker that dies is replaced, and `recover` returns the task to run instead. An
    exception in a task, or an interrupt, ends all workers and is raised here.
    """
    waiting = list(reversed(tasks))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < num_workers:
                workers.append(_start())
                _give(workers[-1], waiting.pop())
            ready = connection.wait([worker.pipe for worker in workers])
            for worker in [w for w in workers if w.pipe in ready]:
                died = _listen(worker, on_file)
                if died is not None:
                    assert worker.task is not None
                    workers.remove(worker)
                    waiting.append(recover(worker.task, died))
                elif worker.task is None and waiting:
                    _give(worker, waiting.pop())
                elif worker.task is None:
                    workers.remove(worker)
                    _stop(worker)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            _stop(worker)


def _start() -> _Worker:
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # Else the pipe would outlive the worker.
    return _Worker(process, ours)


def _give(worker: _Worker, task: Task) -> None:
    worker.task = task
    # If the worker died meanwhile, `_listen` reports its death.
    with contextlib.suppress(BrokenPipeError):
        worker.pipe.send(task)


def _listen(worker: _Worker, on_file: Callable[[], None]) -> str | None:
    """Receives one message; returns how the worker died, or None if it is alive."""
    try:
        message = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(_STOP_SECONDS)
        code = worker.process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"
    if isinstance(message, Exception):
        raise message
    if message == "file":
        on_file()
    else:
        worker.task = None
    return None


def _stop(worker: _Worker) -> None:
    worker.pipe.close()  # A worker that waits for a task then exits.
    worker.process.join(_STOP_SECONDS)
    if worker.process.is_alive():
        worker.process.kill()


def _work(pipe: connection.Connection) -> None:
    """Runs tasks from a pipe in a worker process until the parent closes the pipe."""
    # The parent process handles interrupts and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            task = pipe.recv()
            try:
                task(lambda: pipe.send("file"))
            except (BrokenPipeError, EOFError):
                raise
            except Exception as error:
                error.add_note(traceback.format_exc())
                pipe.send(error)
            else:
                pipe.send("done")
    except (BrokenPipeError, EOFError, ConnectionResetError):
        return
