"""Memory budget of a plan: tokens, or bytes that the compiler confirms."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxload.balance.bucket import Bucket
from jaxload.balance.config import BalanceConfig
from jaxload.balance.cost import CostModel
from jaxload.balance.form import Form, Length
from jaxload.balance.memory import Limit, MemoryLaw, probe_forms, regress_memory
from jaxload.balance.program import REMATS, Layout, Program, Remat
from jaxload.console import Console, phase
from jaxload.errors import InputError
from jaxload.planning.footprint import OTHERS, Compiler, Request, add_queue

_PROBED_UNITS = (1, 2)


@runtime_checkable
class Memory(Protocol):
    """A memory budget and the programs that stay within it."""

    @property
    def source(self) -> str:
        """Source of the budget and of the bytes, as text for the plan."""
        ...

    def prepare(self, forms: Sequence[Form]) -> None:
        """Prepares `limit` for some forms; has to be called before `limit`."""
        ...

    def longest_row(self) -> int:
        """Returns the most tokens of a row within the budget; `prepare` comes first."""
        ...

    def limit(self, form: Form) -> Limit:
        """Returns the largest program within the budget for samples of a form."""
        ...

    def confirm(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...] | None:
        """Returns the buckets with their bytes; None if one exceeds the budget.

        After None, `limit` is lower and batches have to be chosen again.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMemory:
    """Memory budget only in tokens; nothing is compiled."""

    max_tokens: int
    layout: Layout = dataclasses.field(default_factory=Layout)
    remat: Remat = "none"
    multiple: int = 1

    @property
    def source(self) -> str:
        """Source of the budget, as text for the plan."""
        return f"{self.max_tokens:,} tokens in a micro-batch (balance.max_tokens)"

    def prepare(self, forms: Sequence[Form]) -> None:
        """Does nothing."""

    def longest_row(self) -> int:
        """Returns the most tokens of a row in the smallest batch."""
        samples = self._unit // self.layout.batch
        return self.max_tokens // samples * self.layout.devices_per_sample

    def limit(self, form: Form) -> Limit:
        """Returns the largest program within `max_tokens` tokens per device."""
        smallest = Program(
            form=form, batch=self._unit, layout=self.layout, remat=self.remat
        )
        units = self.max_tokens // smallest.tokens_per_device
        program = smallest.resized(max(1, units) * self._unit)
        return Limit(program=program, within_budget=units > 0, unit=self._unit)

    @property
    def _unit(self) -> int:
        return self.layout.smallest_batch(self.multiple)

    def confirm(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
        """Returns the buckets unchanged."""
        return tuple(buckets)


class CompiledMemory:
    """Memory budget in bytes, regressed from a few programs and then confirmed."""

    def __init__(
        self,
        compiler: Compiler,
        costs: CostModel,
        config: BalanceConfig,
        *,
        budget: int,
        origin: str,
        layout: Layout,
        remats: Sequence[Remat],
        console: Console,
    ):
        """Sets the budget to `budget` bytes per device.

        Args:
            compiler: Source of the bytes of a program.
            costs: Cost model by which remat policies are compared.
            config: Section `balance`, with the other limits.
            budget: Bytes of each device.
            origin: Source of the budget, as text for messages.
            layout: Division of a micro-batch among the devices of a group.
            remats: Remat policies to try, the fastest first; a form gets the one with
                the least cost per sample among those within the budget.
            console: Shows progress.
        """
        self._compiler = compiler
        self._costs = costs
        self._origin = origin
        self._config = config
        self._budget = budget
        self._layout = layout
        self._remats = tuple(remats)
        self._console = console
        self._unit = layout.smallest_batch(config.batch_multiple)
        self._laws: dict[Remat, MemoryLaw] = {}
        self._remat_of: dict[Form, Remat] = {}
        self._found: dict[Request, int] = {}
        self._most: dict[tuple[Remat, Form], int] = {}
        self._longest = sys.maxsize

    @property
    def source(self) -> str:
        """Source of the budget and of the bytes, as text for the plan."""
        tokens = self._config.max_tokens
        and_tokens = f" and {tokens:,} tokens (balance.max_tokens)" if tokens else ""
        return (
            f"{self._budget:,} bytes of each device{and_tokens}; programs by "
            f"memory_analysis(), compiled for {self._compiler.device_kind}, with the "
            "state beside them"
        )

    @property
    def others(self) -> dict[str, int]:
        """Bytes of the programs that are not micro-steps."""
        return {name: self._found[name] for name in OTHERS}

    def prepare(self, forms: Sequence[Form]) -> None:
        """Chooses a remat policy for each form; compiles only those that may win."""
        self._check_others()
        for form in forms:
            self._remat_of.pop(form, None)
        for remat in self._remats:
            candidates = [form for form in forms if self._may_choose(remat, form)]
            if candidates and remat not in self._laws:
                self._regress(remat, candidates)
            for form in candidates:
                possible = self._max_units(remat, form) > 0
                if possible and self._cost(remat, form) < self._chosen_cost(form):
                    self._remat_of[form] = remat
        # A form that is too large for every policy gets the one that takes the least
        # memory, and the plan marks the form as over budget.
        missing = [form for form in forms if form not in self._remat_of]
        self._remat_of |= dict.fromkeys(missing, self._remats[-1])

    def longest_row(self) -> int:
        """Returns the most tokens of a row in the smallest batch."""
        samples = self._unit // self._layout.batch
        laws = self._laws.values()
        tokens = max((law.max_tokens(samples, self._budget) for law in laws), default=0)
        if self._config.max_tokens:
            tokens = min(tokens, self._config.max_tokens // samples)
        return min(tokens, self._longest)

    def _may_choose(self, remat: Remat, form: Form) -> bool:
        """Returns whether a policy could cost less than the one chosen so far."""
        sample = self._costs.sample(self._program(form, 1, remat))
        return sample < self._chosen_cost(form)

    def _chosen_cost(self, form: Form) -> float:
        """Returns the cost per sample with the policy chosen so far."""
        remat = self._remat_of.get(form)
        return math.inf if remat is None else self._cost(remat, form)

    def _cost(self, remat: Remat, form: Form) -> float:
        """Returns the cost per sample on a device, at the largest possible batch."""
        program = self._program(form, self._max_units(remat, form), remat)
        return self._costs(program) / program.samples_per_device

    def limit(self, form: Form) -> Limit:
        """Returns the largest program within the budget for samples of a form."""
        remat = self._remat_of[form]
        units = self._max_units(remat, form)
        program = self._program(form, max(1, units), remat)
        return Limit(program=program, within_budget=units > 0, unit=self._unit)

    def confirm(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...] | None:
        """Compiles every bucket; lowers the limit of buckets over the budget."""
        programs = [bucket.program for bucket in buckets]
        self._measure(programs, "confirming memory")
        found = add_queue(self._compiler, {r: self._found[r] for r in programs})
        confirmed = []
        for bucket in buckets:
            num_bytes = found[bucket.program]
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
                    f"{self._origin}: the program {name!r} needs "
                    f"{num_bytes:,} bytes of each device; raise balance.max_bytes, "
                    "shard the model over more devices (mesh.fsdp), or use a smaller "
                    "model"
                )

    def _regress(self, remat: Remat, forms: Sequence[Form]) -> None:
        """Regresses a policy's bytes, unless its smallest probe exceeds the budget."""
        smallest, *programs = (
            self._program(form, units, remat)
            for form in probe_forms(forms)
            for units in _PROBED_UNITS
        )
        title = f"compiling for memory, remat={remat}"
        self._measure([smallest], title)
        if self._with_own_queue(smallest) > self._budget:
            return
        self._measure(programs, title)
        self._laws[remat] = regress_memory(
            {
                program: self._with_own_queue(program)
                for program in (smallest, *programs)
            }
        )

    def _with_own_queue(self, program: Program) -> int:
        """Returns a program's bytes with its own micro-batches queued behind it."""
        return add_queue(self._compiler, {program: self._found[program]})[program]

    def _measure(self, requests: Sequence[Request], title: str) -> None:
        new: list[Request] = [r for r in requests if r not in self._found]
        new = list(dict.fromkeys(new))
        if new:
            with phase(self._console, title, len(new)) as advance:
                self._found |= self._compiler.footprints(new, on_done=advance)

    def _max_units(self, remat: Remat, form: Form) -> int:
        if remat not in self._laws:
            return 0
        per_unit = self._unit // self._layout.batch
        samples = self._laws[remat].max_samples(form.tokens, self._budget)
        if self._config.max_tokens:
            samples = min(samples, self._config.max_tokens // form.tokens)
        return min(samples // per_unit, self._most.get((remat, form), samples))

    def _lower_limit(self, bucket: Bucket) -> bool:
        """Lowers the batch of a form, or of a length the row; False if it cannot."""
        form, remat = bucket.form, bucket.program.remat
        if remat not in self._laws:
            return False
        units, fixed = bucket.batch // self._unit, self._laws[remat].fixed
        share = (self._budget - fixed) / max(1.0, bucket.num_bytes - fixed)
        lower = min(units - 1, max(1, int(units * share)))
        key = (remat, form)
        self._most[key] = min(self._most.get(key, lower), lower)
        if lower or remat != self._remats[-1]:
            return True
        if isinstance(form, Length):
            shorter = min(form.tokens - 1, int(form.tokens * share))
            self._longest = min(self._longest, shorter)
            return True
        return False

    def _program(self, form: Form, units: int, remat: Remat) -> Program:
        return Program(
            form=form,
            batch=units * self._unit,
            layout=self._layout,
            remat=remat,
        )


def remats_to_try(remat: str) -> tuple[Remat, ...]:
    """Returns the remat policies that `model.remat` allows, the fastest first."""
    if remat == "auto":
        return REMATS
    return tuple(policy for policy in REMATS if policy == remat)
