"""Runs tasks in worker processes; the death of a worker does not end the others.

A task whose files are all decoded may still wait for results of encoders. Meanwhile the
worker starts its next task, so that batches fill up with clips of several tasks.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, Protocol, runtime_checkable

from jaxload.media.child import Child, DiedError, stop
from jaxload.media.encode_step import MAX_UNWRITTEN, EncodeStep, LocalStep
from jaxload.media.encoders import Encoders
from jaxload.media.file_progress import FileProgress
from jaxload.media.link import Assigned, FileDone, Link, TaskDone, WantsTask


@runtime_checkable
class Task(Protocol):
    """Unit of work on some files, such as a part of a preparation."""

    def __call__(
        self, on_file: Callable[[], None], step: EncodeStep | None
    ) -> Iterable[None]:
        """Starts the task, and returns an iterator that completes it.

        The iterator yields whenever the task has to wait for results of `step`.
        `on_file` is called after each finished file.
        """
        ...


Recover = Callable[[Any, str], Task]
"""(task, how its worker died) -> task to run instead, or InputError to give up."""

MakeStep = Callable[[Link], EncodeStep]
"""Makes the encode step of a worker; pickled and called in the worker process."""


def run_here(
    tasks: Iterable[Task], *, on_file: Callable[[], None], step: LocalStep | None
) -> None:
    """Runs tasks in this process.

    A task that waits for its batches to fill is interleaved with later tasks.
    """
    running: list[Iterator[None]] = []
    for task in tasks:
        # The new task goes first: it fills batches that earlier tasks wait for.
        running = _unfinished([iter(task(on_file, step)), *running])
        while step is not None and step.num_unwritten > MAX_UNWRITTEN // 2:
            step.wait()
            running = _unfinished(running)
    while running:
        assert step is not None
        step.wait()
        running = _unfinished(running)


def _unfinished(running: list[Iterator[None]]) -> list[Iterator[None]]:
    """Advances all iterators, and returns the unfinished ones."""
    return [work for work in running if next(work, _DONE) is not _DONE]


_DONE = object()


@dataclasses.dataclass(eq=False)
class _Worker:
    """A worker process and its tasks."""

    child: Child
    tasks: dict[int, Task] = dataclasses.field(default_factory=dict)
    """Tasks that are not finished, by number."""

    current: int | None = None
    """Number of the task that is decoding; None if the worker requests another."""


def run_in_processes(
    tasks: Sequence[Task],
    *,
    num_workers: int,
    on_file: Callable[[], None],
    recover: Recover,
    make_step: MakeStep | None = None,
    encoders: Encoders | None = None,
) -> None:
    """Runs tasks in at most `num_workers` worker processes.

    A dead worker is replaced, and `recover` returns the task to run instead of the task
    to blame. If a task raises an exception, or on an interrupt, all workers end and the
    exception is raised here.
    """
    pool = _Pool(tasks, on_file, recover, make_step, encoders)
    try:
        pool.give_tasks(num_workers)
        while pool.is_unfinished:
            pool.listen()
            pool.give_tasks(num_workers)
    finally:
        pool.close()


class _Pool:
    """Worker processes, and the tasks that are not assigned to a worker."""

    def __init__(
        self,
        tasks: Sequence[Task],
        on_file: Callable[[], None],
        recover: Recover,
        make_step: MakeStep | None,
        encoders: Encoders | None,
    ):
        self._waiting = deque(enumerate(tasks))
        self._progress = [FileProgress(on_file) for _ in tasks]
        self._workers: list[_Worker] = []
        self._released: list[Child] = []
        """Processes that end by themselves."""
        self._recover = recover
        self._make_step = make_step
        self._encoders = encoders

    @property
    def is_unfinished(self) -> bool:
        """True if a task is unassigned or running."""
        return bool(self._waiting or self._workers)

    def give_tasks(self, num_workers: int) -> None:
        """Starts missing workers, assigns tasks to free ones, releases idle ones."""
        for worker in list(self._workers):
            if worker.current is None and not worker.tasks and not self._waiting:
                # Not waited for here: meanwhile, encoders would get no batches.
                self._workers.remove(worker)
                self._release(worker.child)
        num_new = min(num_workers - len(self._workers), len(self._waiting))
        self._workers += [
            _Worker(Child(_work, self._make_step)) for _ in range(num_new)
        ]
        for worker in self._workers:
            if worker.current is None and self._waiting:
                worker.current, task = self._waiting.popleft()
                worker.tasks[worker.current] = task
                worker.child.send(Assigned(worker.current, task))

    def listen(self) -> None:
        """Waits for messages from workers and encoders, and handles them."""
        pipes = [worker.child.pipe for worker in self._workers]
        if self._encoders is not None:
            decoding = [w.child for w in self._workers if w.current is not None]
            self._encoders.advance(decoding)
            pipes += self._encoders.pipes
        ready = connection.wait(pipes)
        for worker in [w for w in self._workers if w.child.pipe in ready]:
            try:
                self._handle(worker, worker.child.receive())
            except DiedError as error:
                self._requeue_tasks(worker, str(error))
        if self._encoders is not None:
            for pipe in [pipe for pipe in self._encoders.pipes if pipe in ready]:
                self._encoders.listen(pipe)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.child.terminate()
        stop([*self._released, *(worker.child for worker in self._workers)])

    def _release(self, child: Child) -> None:
        child.release()
        self._released.append(child)

    def _handle(self, worker: _Worker, message: Any) -> None:
        match message:
            case FileDone(number=number):
                self._progress[number]()
            case WantsTask():
                worker.current = None
            case TaskDone(number=number):
                del worker.tasks[number]
            case _:
                assert self._encoders is not None
                self._encoders.handle(worker.child, message)

    def _requeue_tasks(self, worker: _Worker, how: str) -> None:
        """Removes a dead worker and puts its tasks back at the front of the queue."""
        self._workers.remove(worker)
        self._release(worker.child)
        if self._encoders is not None:
            self._encoders.forget(worker.child)
        # Blames the task that was decoding, or else the oldest one.
        blamed = worker.current
        if blamed is None:
            blamed = next(iter(worker.tasks), None)
        for number, task in reversed(worker.tasks.items()):
            self._progress[number].restart()
            again = self._recover(task, how) if number == blamed else task
            self._waiting.appendleft((number, again))


def _work(pipe: connection.Connection, make_step: MakeStep | None) -> None:
    """Main function of a worker process: runs tasks until the pipe is closed."""
    link = Link(pipe)
    step = make_step(link) if make_step else None
    running: dict[int, Iterator[None]] = {}
    while True:
        while link.tasks:
            assigned = link.tasks.popleft()
            number, task = assigned.number, assigned.task
            on_file = functools.partial(link.send, FileDone(number))
            # The new task goes first: results that arrive while it decodes may finish
            # earlier tasks.
            running = {number: iter(task(on_file, step)), **running}
            _advance(link, running)
            while step is not None and step.num_unwritten > MAX_UNWRITTEN // 2:
                step.wait()
                _advance(link, running)
            link.send(WantsTask())
        link.wait()
        _advance(link, running)


def _advance(link: Link, running: dict[int, Iterator[None]]) -> None:
    """Advances all tasks, and reports the finished ones to the main process."""
    for number, work in list(running.items()):
        if next(work, _DONE) is _DONE:
            del running[number]
            link.send(TaskDone(number))
