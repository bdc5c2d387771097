"""The memory budget of a plan: tokens, or bytes that the compiler confirms."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rich.console import Console

from jaxload.balance.bucket import Bucket
from jaxload.balance.config import BalanceConfig
from jaxload.balance.memory import Limit, MemoryLaw, probe_shapes, regress_memory
from jaxload.balance.program import REMATS, Grid, Layout, Program, Remat
from jaxload.console import phase
from jaxload.errors import InputError
from jaxload.planning.footprint import OTHERS, Compiler, Request
from jaxload.shapes.shape import Shape

_PROBED_UNITS = (1, 2)


@runtime_checkable
class Memory(Protocol):
    """A memory budget that programs have to stay within."""

    @property
    def source(self) -> str:
        """Origin of the budget and of the bytes."""
        ...

    def prepare(self, shapes: Sequence[Shape]) -> None:
        """Gets ready to answer for some shapes."""
        ...

    def limit(self, shape: Shape) -> Limit:
        """Returns the largest program for samples of a shape."""
        ...

    def confirm(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...] | None:
        """Returns the buckets with their bytes; None if one is too large after all.

        Then `limit` knows better, and batches have to be chosen again.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMemory:
    """Memory by tokens alone: nothing is compiled."""

    max_tokens: int
    layout: Layout = dataclasses.field(default_factory=Layout)
    remat: Remat = "none"
    multiple: int = 1

    @property
    def source(self) -> str:
        """Origin of the budget."""
        return f"{self.max_tokens:,} tokens in a micro-batch (balance.max_tokens)"

    def prepare(self, shapes: Sequence[Shape]) -> None:
        """Does nothing."""

    def limit(self, shape: Shape) -> Limit:
        """Returns the largest program whose devices hold no more tokens."""
        unit = self.layout.smallest_batch(self.multiple)
        smallest = Program(
            form=Grid.of(shape), batch=unit, layout=self.layout, remat=self.remat
        )
        units = self.max_tokens // smallest.tokens_per_device
        program = smallest.resized(max(1, units) * unit)
        return Limit(program=program, fits=units > 0, unit=unit)

    def confirm(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
        """Returns the buckets as they are."""
        return tuple(buckets)


class CompiledMemory:
    """Memory by bytes: regressed from a few programs, confirmed for those chosen."""

    def __init__(
        self,
        compiler: Compiler,
        config: BalanceConfig,
        *,
        budget: int,
        layout: Layout,
        remats: Sequence[Remat],
        console: Console,
    ):
        """Plans within `budget` bytes per device.

        Args:
            compiler: Tells the bytes of a program.
            config: Other limits.
            budget: Bytes of each device.
            layout: How a group's devices share a micro-batch.
            remats: Policies to try, the fastest first; a shape gets the first that
                fits.
            console: Shows progress.
        """
        self._compiler = compiler
        self._config = config
        self._budget = budget
        self._layout = layout
        self._remats = tuple(remats)
        self._console = console
        self._unit = layout.smallest_batch(config.batch_multiple)
        self._laws: dict[Remat, MemoryLaw] = {}
        self._remat_of: dict[Shape, Remat] = {}
        self._found: dict[Request, int] = {}
        self._most: dict[Shape, int] = {}

    @property
    def source(self) -> str:
        """Origin of the budget and of the bytes."""
        return (
            f"{self._budget:,} bytes of each device; programs by memory_analysis(), "
            f"compiled for {self._compiler.device_kind}, with the state beside them"
        )

    @property
    def others(self) -> dict[str, int]:
        """Bytes of the programs that are not micro-steps."""
        return {name: self._found[name] for name in OTHERS}

    def prepare(self, shapes: Sequence[Shape]) -> None:
        """Regresses memory, policy by policy until every shape has one that fits."""
        self._check_others()
        missing = list(shapes)
        for remat in self._remats:
            if missing:
                self._laws[remat] = self._regress(remat, missing)
                fitting = [s for s in missing if self._max_units(remat, s) > 0]
                self._remat_of |= dict.fromkeys(fitting, remat)
                missing = [shape for shape in missing if shape not in self._remat_of]
        # Too large for all policies: the smallest, and the plan says so.
        self._remat_of |= dict.fromkeys(missing, self._remats[-1])

    def limit(self, shape: Shape) -> Limit:
        """Returns the largest program for samples of a shape."""
        remat = self._remat_of[shape]
        units = self._max_units(remat, shape)
        program = self._program(shape, max(1, units), remat)
        return Limit(program=program, fits=units > 0, unit=self._unit)

    def confirm(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...] | None:
        """Compiles every bucket; lowers the limit of those that are too large."""
        self._measure([b.program for b in buckets], "confirming memory")
        confirmed = []
        for bucket in buckets:
            num_bytes = self._found[bucket.program]
            over = bucket.over_budget or num_bytes > self._budget
            confirmed.append(
                dataclasses.replace(bucket, num_bytes=num_bytes, over_budget=over)
            )
        changed = [
            self._lower_limit(bucket)
            for bucket in confirmed
            if bucket.num_bytes > self._budget
        ]
        return None if any(changed) else tuple(confirmed)

    def _check_others(self) -> None:
        self._measure(OTHERS, "compiling for memory")
        for name, num_bytes in self.others.items():
            if num_bytes > self._budget:
                raise InputError(
                    f"balance.max_bytes={self._budget}: the program {name!r} needs "
                    f"{num_bytes:,} bytes of each device; shard the model over more "
                    "devices (mesh.fsdp), or choose a smaller one"
                )

    def _regress(self, remat: Remat, shapes: Sequence[Shape]) -> MemoryLaw:
        programs = [
            self._program(shape, units, remat)
            for shape in probe_shapes(shapes)
            for units in _PROBED_UNITS
        ]
        self._measure(programs, f"compiling for memory, remat={remat}")
        return regress_memory({program: self._found[program] for program in programs})

    def _measure(self, requests: Sequence[Request], title: str) -> None:
        new: list[Request] = [r for r in requests if r not in self._found]
        new = list(dict.fromkeys(new))
        if new:
            with phase(self._console, title, len(new)) as advance:
                self._found |= self._compiler.footprints(new, on_done=advance)

    def _max_units(self, remat: Remat, shape: Shape) -> int:
        per_unit = self._unit // self._layout.batch
        samples = self._laws[remat].max_samples(shape.tokens, self._budget)
        if self._config.max_tokens:
            samples = min(samples, self._config.max_tokens // shape.tokens)
        return min(samples // per_unit, self._most.get(shape, samples))

    def _lower_limit(self, bucket: Bucket) -> bool:
        """Lowers the batch of a shape, or changes its remat; False if nothing helps."""
        shape, remat = bucket.shape, bucket.program.remat
        units = bucket.batch // self._unit
        if units > 1:
            fixed = self._laws[remat].fixed
            share = (self._budget - fixed) / max(1.0, bucket.num_bytes - fixed)
            fits = max(1, min(units - 1, int(units * share)))
            self._most[shape] = min(self._most.get(shape, fits), fits)
            return True
        later = self._remats[self._remats.index(remat) + 1 :]
        if not later:
            return False
        if later[0] not in self._laws:
            self._laws[later[0]] = self._regress(later[0], [shape])
        self._remat_of[shape] = later[0]
        self._most.pop(shape, None)  # It was for the remat before.
        return True

    def _program(self, shape: Shape, units: int, remat: Remat) -> Program:
        return Program(
            form=Grid.of(shape),
            batch=units * self._unit,
            layout=self._layout,
            remat=remat,
        )


def remats_to_try(remat: str) -> tuple[Remat, ...]:
    """Returns the policies that `model.remat` allows, the fastest first."""
    if remat == "auto":
        return REMATS
    return tuple(policy for policy in REMATS if policy == remat)
