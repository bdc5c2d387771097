"""Compiles every program before the first step, and notices if one comes later."""

import concurrent.futures
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

import jax
from jax.stages import Compiled, Lowered

Key = TypeVar("Key", bound=Hashable)

_MAX_THREADS = 8  # Each may take gigabytes of host memory for a large model.
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def compile_ahead(
    lowerings: Mapping[Key, Callable[[], Lowered]],
    *,
    on_done: Callable[[Key], None],
) -> dict[Key, Compiled]:
    """Lowers and compiles each program, several at a time.

    XLA compiles outside of Python's lock, so threads are enough.
    """

    def work(name: Key) -> tuple[Key, Compiled]:
        return name, lowerings[name]().compile()

    compiled = {}
    num_threads = min(os.cpu_count() or 1, _MAX_THREADS)
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(work, name) for name in lowerings]
        for future in concurrent.futures.as_completed(futures):
            name, program = future.result()
            compiled[name] = program
            on_done(name)
    return compiled


def enable_compile_cache(directory: Path) -> None:
    """Keeps compiled programs in a directory, unless the user named one to JAX."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        # A program on several devices names the object that partitions a call by its
        # address, which is another one in every process: with it in the key, nothing
        # would be found again. Ours can be told apart without it (see ops/_kernel.py).
        # Those of others, such as JAX's cuDNN attention, are the same for all programs
        # of a run, and so of this directory; in a user's own they might not be.
        jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)


class CompileCounter:
    """Counts the programs that are made ready while the context is open."""

    def __init__(self):
        self.count = 0
        """Programs compiled by XLA or loaded from the cache."""

        self.loaded = 0
        """Those of them that the cache had."""

    def __enter__(self) -> "CompileCounter":
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        jax.monitoring.register_event_listener(self._listen_to_cache)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._listen)
        jax.monitoring.unregister_event_listener(self._listen_to_cache)

    def _listen_to_cache(self, event: str, **_: str | int):
        self.loaded += event == _CACHE_HIT

    def _listen(self, event: str, duration_secs: float, **_: str | int):
        del duration_secs
        self.count += event == _COMPILE_EVENT
