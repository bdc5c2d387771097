"""Cost of padding masks: a micro-step of rows by length against one by grid.

    python -m benchmarks.models.row_traffic BATCH    # prints JSON

Both are compiled for one H100, for the same tokens without padding. The bytes of a
block are those that its kernels read and write, forward and backward: each array counts
once per kernel, as if every kernel started with an empty, unlimited cache. Of arrays
that are stacked over the layers, one layer counts. Needs the tools that
benchmarks.models.h100 needs.
"""

import dataclasses
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.table import Table

from benchmarks.models.h100 import LATENT, make_lowering
from jaxload import targets
from jaxload.balance.form import Form, Grid, Length
from jaxload.balance.program import Program
from jaxload.console import Console
from jaxload.models import WanConfig, preset
from jaxload.parallel.config import MeshConfig
from jaxload.planning.footprint import program_bytes, resident_bytes
from jaxload.targets.child_process import run_python
from jaxload.training.lowering import Lowering

PRESET = "wan2.1-t2v-1.3b"
MAX_RATIO = 1.02
GRIDS = {1: Grid(*LATENT), 20: Grid(1, *LATENT[1:])}
"""Grids of the samples, by the size of the batch: a clip, and images."""

# Instructions that launch no kernel of their own.
_MOVE_NOTHING = ("bitcast", "constant", "get-tuple-element", "parameter", "tuple")
_ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4}

Bytes = tuple[int, int]
"""Bytes of the program by grid, and of the program by length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Memory and traffic of both programs on a device."""

    batch: int
    tokens: int
    """Tokens of a sample."""

    peak: Bytes
    """Peak memory of the micro-step."""

    block: Bytes
    """Bytes that the kernels of a block read and write."""

    changed: list[tuple[int, str]]
    """Kernels that the program by length has more of than the other, or fewer: bytes,
    which are negative for fewer, and description."""

    @property
    def is_small_enough(self) -> bool:
        """True if neither number grows by more than MAX_RATIO."""
        return all(new <= MAX_RATIO * old for old, new in (self.peak, self.block))


def compare(batch: int) -> Comparison:
    """Compiles both programs for a batch of samples."""
    model, grid = preset(PRESET), GRIDS[batch]
    assert isinstance(model, WanConfig)
    lowering = make_lowering(model, MeshConfig(), targets.H100.devices(1))
    peaks, kernels = [], []
    for form in (grid, Length(grid.tokens)):
        peak, text = _compile(lowering, form, batch)
        peaks.append(peak)
        kernels.append(Counter(block_kernels(text, depth=model.depth)))
    by_grid, by_length = kernels
    more, fewer = by_length - by_grid, by_grid - by_length
    changed = [(size, name) for (size, name) in more.elements()]
    changed += [(-size, name) for (size, name) in fewer.elements()]
    return Comparison(
        batch=batch,
        tokens=grid.tokens,
        peak=(peaks[0], peaks[1]),
        block=(_total(by_grid), _total(by_length)),
        changed=sorted(changed, key=lambda kernel: (-abs(kernel[0]), kernel)),
    )


def _compile(lowering: Lowering, form: Form, batch: int) -> tuple[int, str]:
    """Returns the peak bytes and the HLO text of a micro-step."""
    layout, remat = lowering.placement.layout, lowering.trainer.model.remat
    assert remat != "auto"
    program = Program(form=form, batch=batch, layout=layout, remat=remat)
    compiled = lowering.micro_step(program, lowering.placement.groups[0]).compile()
    peak = program_bytes(compiled) + resident_bytes(lowering, program)
    return peak, compiled.as_text() or ""


def block_kernels(text: str, *, depth: int) -> Iterator[tuple[int, str]]:
    """Yields bytes and description of the kernels in the loops over the blocks.

    Args:
        text: Scheduled HLO.
        depth: Number of blocks, the first axis of stacked arrays.
    """
    for name in re.findall(r" while\(.*body=%([\w.-]+)", text):
        body = text[text.index(f"\n%{name} (") + 1 :]
        types: dict[str, str] = {}
        for result, kind, opcode, operands, attributes in re.findall(
            r"^\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*?)\)(.*)$",
            body[: body.index("\n}")],
            re.MULTILINE,
        ):
            types[result] = re.sub(r"\{.*?\}|/\*.*?\*/", "", kind)
            if opcode in _MOVE_NOTHING:
                continue
            reads = sorted(types[o] for o in re.findall(r"%([\w.-]+)", operands))
            target = re.search(r'custom_call_target="([^"]+)"', attributes)
            title = target[1] if target else opcode
            arrays = f"{', '.join(reads)} -> {types[result]}"
            yield _num_bytes(arrays, depth), f"{title}: {arrays}"


def _num_bytes(types: str, depth: int) -> int:
    total = 0
    for short, dims in re.findall(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]", types):
        sizes = [int(size) for size in dims.split(",") if size]
        is_stacked = len(sizes) > 1 and sizes[0] == depth
        total += math.prod(sizes[is_stacked:]) * _ITEM_BYTES[short]
    return total


def _total(kernels: Counter[tuple[int, str]]) -> int:
    return sum(size for size, _ in kernels.elements())


def measure(batch: int) -> Comparison:
    """Runs `compare` in a process that can compile for GPUs."""
    report = run_python("-m", "benchmarks.models.row_traffic", str(batch))
    return Comparison(**json.loads(report))


def print_table(found: Sequence[Comparison], console: Console) -> None:
    """Prints both numbers of each batch, and the kernels that differ."""
    table = Table(
        title=f"Rows by length against rows by grid, full, of {PRESET} on an H100, "
        f"compiled. Goal: at most {MAX_RATIO:.2f}"
    )
    table.add_column("tokens")
    for name in ("peak by grid", "by length", "block by grid", "by length", "ratio"):
        table.add_column(name, justify="right")
    for one in found:
        ratios = [new / old for old, new in (one.peak, one.block)]
        table.add_row(
            f"{one.batch} x {one.tokens:,}",
            *(f"{size / 1e9:.3f} GB" for size in (*one.peak, *one.block)),
            ", ".join(f"{ratio:.4f}" for ratio in ratios),
        )
    console.print(table)
    for one in found:
        console.say(f"{one.batch} x {one.tokens:,}: kernels of a block that differ, MB")
        for size, name in one.changed:
            console.say(f"{size / 1e6:+9.1f}  {name}")


def main(argv: Sequence[str]) -> int:
    """Runs `python -m benchmarks.models.row_traffic`; returns the exit code."""
    print(json.dumps(dataclasses.asdict(compare(int(argv[0])))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
