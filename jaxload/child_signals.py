"""Keeps Ctrl-C away from child processes, which the main process ends itself."""

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Blocks SIGINT in the processes that are started in this context.

    A terminal sends SIGINT to all processes of a command. Python would print a
    traceback even while a child imports modules, before the child could ignore the
    signal, but a blocked signal stays blocked in a new process. In this process, the
    signal is delivered at the end of the context.
    """
    # Starts a process of multiprocessing now, because its start unblocks SIGINT.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
