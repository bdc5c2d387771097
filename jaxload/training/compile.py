"""Compiles every program before the first step, and notices if one comes later."""

import concurrent.futures
from collections.abc import Callable, Mapping

import jax
from jax.stages import Compiled, Lowered

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def compile_ahead(
    lowerings: Mapping[str, Callable[[], Lowered]],
    *,
    num_threads: int,
    on_done: Callable[[str], None],
) -> dict[str, Compiled]:
    """Lowers and compiles each program, several at a time.

    XLA compiles outside of Python's lock, so threads are enough.
    """

    def work(name: str) -> Compiled:
        compiled = lowerings[name]().compile()
        on_done(name)
        return compiled

    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        futures = {name: pool.submit(work, name) for name in lowerings}
        return {name: future.result() for name, future in futures.items()}


class CompileCounter:
    """Counts the programs that XLA compiles while the context is open."""

    def __init__(self):
        self.count = 0

    def __enter__(self) -> "CompileCounter":
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int):
        del duration_secs
        self.count += event == _COMPILE_EVENT
