"""Plans whose programs take no more bytes than there are, as the compiler says."""

import dataclasses
from collections.abc import Callable, Collection

from rich.console import Console

from jaxload.balance.memory import MemoryModel
from jaxload.config import Config
from jaxload.console import phase
from jaxload.errors import InputError
from jaxload.parallel.mesh import replica_mesh
from jaxload.planning.footprint import confirm, measure_memory
from jaxload.planning.plan import Plan
from jaxload.planning.planner import MemoryLimit, token_limit
from jaxload.shapes.shape import Shape

_MAX_CONFIRMATIONS = 4


def plan_within_memory(
    config: Config,
    shapes: Collection[Shape],
    make: Callable[[MemoryLimit], Plan],
    console: Console,
) -> Plan:
    """Plans by the bytes that programs take if the config has a budget of these.

    Otherwise by tokens, for which nothing is compiled.
    """
    if not config.balance.max_bytes:
        return make(token_limit(config.balance.max_tokens))
    model = _compiled_memory(config, shapes, console)
    return confirmed_plan(config, model, make, console)


def _compiled_memory(
    config: Config, shapes: Collection[Shape], console: Console
) -> MemoryModel:
    """Compiles two programs for each shape, to see what a sample takes."""
    with phase(console, "compiling for memory", 2 * len(shapes)) as advance:
        return measure_memory(
            config, shapes, replica_mesh(), on_done=lambda _: advance()
        )


def confirmed_plan(
    config: Config,
    model: MemoryModel,
    make: Callable[[MemoryLimit], Plan],
    console: Console,
) -> Plan:
    """Plans by compiled memory, and compiles every bucket to confirm its bytes.

    A bucket that takes more than its line said, and more than there is, has its line
    drawn through what was found, and the plan is made again.
    """
    budget, mesh = config.balance.max_bytes, replica_mesh()
    found: dict[tuple[Shape, int], int] = {}
    limits: dict[Shape, int] = {}
    for _ in range(_MAX_CONFIRMATIONS):
        plan = make(_byte_limit(model, budget, config.balance.max_tokens, limits))
        new = {(b.shape, b.batch) for b in plan.buckets} - set(found)
        with phase(console, "confirming memory", len(new)) as advance:
            for shape, batch in sorted(new):
                line = model.line(shape)
                _, found[shape, batch] = confirm(config, shape, batch, mesh, line)
                advance()
        confirmed = tuple(
            dataclasses.replace(
                b,
                num_bytes=found[b.shape, b.batch],
                over_budget=b.over_budget or found[b.shape, b.batch] > budget,
            )
            for b in plan.buckets
        )
        over = [b for b in confirmed if b.num_bytes > budget and b.batch > 1]
        if not over:
            return dataclasses.replace(plan, buckets=confirmed)
        for bucket in over:
            fixed = model.line(bucket.shape).fixed
            share = (budget - fixed) / (bucket.num_bytes - fixed)
            fits = max(1, min(bucket.batch - 1, int(bucket.batch * share)))
            limits[bucket.shape] = min(limits.get(bucket.shape, fits), fits)
    raise InputError(
        f"balance.max_bytes={budget}: no batch sizes found that stay below it in "
        f"{_MAX_CONFIRMATIONS} rounds of compiling; raise it, or use remat"
    )


def _byte_limit(
    model: MemoryModel, budget: int, max_tokens: int, limits: dict[Shape, int]
) -> MemoryLimit:
    def max_batch(shape: Shape) -> int:
        fits = min(model.max_batch(shape, budget), max_tokens // shape.tokens)
        return min(fits, limits.get(shape, fits))

    return MemoryLimit(
        max_batch=max_batch,
        num_bytes=lambda shape, batch: int(model.bytes(shape, batch)),
        source=f"{budget:,} bytes (balance.max_bytes); each program's by "
        "memory_analysis() of the compiled step, confirmed for the batch chosen",
    )
