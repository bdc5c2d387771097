"""Fake compiler: computes bytes by a formula, and records its requests."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jaxload.balance.program import Program, Remat
from jaxload.planning.footprint import SAMPLE, UPDATE, Request

FIXED = 1_000
PER_TOKEN: Mapping[Remat, int] = {"none": 10, "attention": 5, "full": 2}


def line(program: Program) -> int:
    """Returns bytes that are linear in the tokens of a device."""
    return FIXED + PER_TOKEN[program.remat] * program.tokens_per_device


@dataclasses.dataclass
class FakeCompiler:
    """Returns the bytes of programs without compiling them."""

    bytes_of: Callable[[Program], int] = line
    others: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {UPDATE: 900, SAMPLE: 800}
    )
    compiled: list[Request] = dataclasses.field(default_factory=list)
    """All requests in order, including repeated ones."""

    @property
    def device_kind(self) -> str:
        """Name of the type of device."""
        return "fake"

    batch: int = 0
    """Bytes of every micro-batch on a device."""

    def batch_bytes(self, program: Program) -> int:
        """Returns the bytes of a micro-batch."""
        return self.batch

    @property
    def programs(self) -> list[Program]:
        """Programs of the compiled micro-steps, in order."""
        return [request for request in self.compiled if isinstance(request, Program)]

    def footprints(
        self, requests: Sequence[Request], *, on_done: Callable[[], None]
    ) -> dict[Request, int]:
        """Returns the bytes of each program by the formula."""
        found: dict[Request, int] = {}
        for request in requests:
            self.compiled.append(request)
            is_program = isinstance(request, Program)
            found[request] = (
                self.bytes_of(request) if is_program else self.others[request]
            )
            on_done()
        return found
