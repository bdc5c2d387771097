"""Interrupts: a command ends quietly within seconds, after a checkpoint in progress.

Python raises KeyboardInterrupt only between its own instructions, and only in the main
thread. XLA compiles for minutes without one, and an executor waits for its threads. So
a second thread watches for signals, and ends the process if the main thread does not.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 4.0
_POLL_SECONDS = 0.1

EXIT_CODE = 130


@dataclasses.dataclass
class _State:
    """State of this process, since signals belong to a process."""

    received: bool = False
    raised: bool = False
    num_deferring: int = 0
    busy: list[Callable[[], bool]] = dataclasses.field(default_factory=list)


_state = _State()


def received() -> bool:
    """Returns whether a signal has asked this process to end."""
    return _state.received


@contextlib.contextmanager
def ending_on_signals(say: Callable[[], None]) -> Iterator[None]:
    """Raises KeyboardInterrupt at the first SIGINT or SIGTERM; ignores later ones.

    If the process is still alive some seconds later, and not in one of the contexts
    below, it is ended with `EXIT_CODE` after a call of `say`, which may run in another
    thread. That holds beyond this context, because Python waits for threads at exit.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    others = [signal.signal(number, _on_signal) for number in _SIGNALS]
    previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    _forget_in_children()
    threading.Thread(target=_watch, args=(read, say), daemon=True).start()
    try:
        yield
    finally:
        if not _state.received:
            signal.set_wakeup_fd(previous)
            for number, other in zip(_SIGNALS, others, strict=True):
                signal.signal(number, other)
            os.close(write)  # Ends the thread.


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Lets the main thread finish its work; an interrupt is raised afterwards."""
    _state.num_deferring += 1
    try:
        yield
    finally:
        _state.num_deferring -= 1
    if _state.received and not _state.raised and not _state.num_deferring:
        _state.raised = True
        raise KeyboardInterrupt


@contextlib.contextmanager
def finishing(is_busy: Callable[[], bool]) -> Iterator[None]:
    """Lets background work finish before an interrupt ends the process."""
    _state.busy.append(is_busy)
    try:
        yield
    finally:
        _state.busy.remove(is_busy)


def _on_signal(number: int, frame: object) -> None:
    del number, frame
    _state.received = True
    if not _state.raised and not _state.num_deferring:
        _state.raised = True
        raise KeyboardInterrupt


def _watch(read: int, say: Callable[[], None]) -> None:
    """Waits for a signal, which Python's own handler may see much later."""
    while (number := os.read(read, 1)) and number[0] not in _SIGNALS:
        pass
    if not number:  # The command has ended.
        os.close(read)
        return
    _state.received = True
    time.sleep(GRACE_SECONDS)
    if _is_busy():
        while _is_busy():
            time.sleep(_POLL_SECONDS)
        time.sleep(GRACE_SECONDS)
    say()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(EXIT_CODE)


def _is_busy() -> bool:
    return bool(_state.num_deferring) or any(is_busy() for is_busy in _state.busy)


@functools.cache
def _forget_in_children() -> None:
    """Keeps a forked child's signals from waking the thread of its parent."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
