"""Compiles programs before the first step, and counts compilations."""

import concurrent.futures
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

import jax
from jax.stages import Compiled, Lowered

Key = TypeVar("Key", bound=Hashable)

_MAX_THREADS = 8  # Compiling a large model may take gigabytes of host memory.
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def compile_ahead(
    lowerings: Mapping[Key, Callable[[], Lowered]],
    *,
    on_done: Callable[[Key], None],
) -> dict[Key, Compiled]:
    """Lowers and compiles each program, several at a time.

    XLA releases Python's global lock while it compiles, so threads are enough.
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
    """Caches compiled programs in a directory, unless the environment names one."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        # A program on several devices contains the addresses of its custom partitioning
        # objects, which differ in every process: with them in the key, the cache would
        # never hit. Our objects can be told apart without addresses (see
        # ops/_partitioned.py). Those of libraries, such as JAX's cuDNN attention, are
        # the same for all programs of a run, and so for all programs in this directory.
        # In a cache directory that a user shares between runs, they might differ.
        jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)


class CompileCounter:
    """Counts programs that are compiled, or read from the cache, in this context."""

    def __init__(self):
        self.count = 0
        """Programs compiled by XLA or read from the cache."""

        self.loaded = 0
        """Programs read from the cache."""

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
