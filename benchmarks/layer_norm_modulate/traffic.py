"""HBM traffic of the CUDA kernels of layer_norm_modulate, measured without a GPU.

Our kernels are emulated on the CPU, with a model of an H100's L2 cache. XLA's bytes are
the sizes of the arrays that its H100 code for the plain form accesses.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import ml_dtypes
import numpy as np
from rich.table import Table

from benchmarks import h100
from jaxload.console import Console
from jaxload.ops._kernel import workspace_shape
from jaxload.targets.child_process import PLUGIN
from tests.cuda_emulation import emulation

MAX_OVER_LEAST = {"forward": 1.02, "backward": 1.05}

_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Memory traffic of one pass over one shape, in bytes."""

    shape: tuple[int, int, int]
    dtype: str
    direction: str
    least: int
    """Lower bound: each operand read once, each result written once."""

    ours: int
    ours_by_array: dict[str, tuple[int, int]]
    """Bytes read and bytes written, by array."""

    xla: int | None
    """Bytes moved by XLA's code; None if XLA cannot compile for an H100 here."""

    xla_kernels: list[dict[str, dict[str, int]]]

    @property
    def over_least(self) -> float:
        """Our bytes divided by the lower bound; 1 is optimal."""
        return self.ours / self.least


def measure(shape: tuple[int, int, int], dtype: str) -> list[Traffic]:
    """Measures forward and backward of both operations, ours and XLA's."""
    plain = h100.run("kernels", "x".join(map(str, shape)), dtype) if has_xla() else {}
    return [
        _traffic(shape, dtype, direction, result, plain.get(direction, []))
        for is_gated in (False, True)
        for direction, result in _run(shape, dtype, is_gated).items()
    ]


def _run(
    shape: tuple[int, int, int], dtype: str, is_gated: bool
) -> dict[str, emulation.Result]:
    batch, _, width = shape
    rng = np.random.default_rng(0)
    x, h, dy, dresidual = (
        rng.standard_normal(shape, np.float32).astype(_DTYPES[dtype]) for _ in range(4)
    )
    gate, scale, shift = rng.standard_normal((3, batch, width), np.float32)
    options = emulation.Options(counts_traffic=True)
    gated = {"h": h, "gate": gate} if is_gated else {}
    forward = emulation.forward(x, scale, shift, options=options, **gated)
    backward = emulation.backward(
        *(x, scale, forward["mean"], forward["rstd"], dy),
        num_runs=workspace_shape(shape, num_sums=3 if is_gated else 2)[1],
        dresidual=dresidual if is_gated else None,
        options=options,
        **gated,
    )
    prefix = "gated " if is_gated else ""
    return {f"{prefix}forward": forward, f"{prefix}backward": backward}


def has_xla() -> bool:
    """Returns True if XLA can compile for an H100 here."""
    return PLUGIN.is_dir()


def _traffic(
    shape: tuple[int, int, int],
    dtype: str,
    direction: str,
    result: emulation.Result,
    xla_kernels: list[dict[str, Any]],
) -> Traffic:
    by_array = {
        name: (traffic.hbm_read, traffic.hbm_written)
        for name, traffic in result.traffic.items()
    }
    sizes = result.num_bytes
    xla = sum(
        sum(kernel[access].values())
        for kernel in xla_kernels
        for access in ("reads", "writes")
    )
    return Traffic(
        shape=shape,
        dtype=dtype,
        direction=direction,
        least=sum(size for name, size in sizes.items() if name != "workspace"),
        ours=sum(map(sum, by_array.values())),
        ours_by_array=by_array,
        xla=xla or None,
        xla_kernels=xla_kernels,
    )


# Printing.


def targets(rows: Sequence[Traffic]) -> dict[str, bool]:
    """Returns the targets in words, each with True if all rows meet it."""
    return {
        f"{direction}: at most {most:g} times the least bytes": all(
            row.over_least <= most for row in rows if row.direction.endswith(direction)
        )
        for direction, most in MAX_OVER_LEAST.items()
    }


def print_table(rows: Sequence[Traffic], console: Console):
    """Prints all rows, and which targets were met."""
    titles = ("least MB", "ours MB", "XLA MB", "ours / least", "XLA / least")
    table = Table("shape", "dtype", "direction", *titles)
    for column in table.columns[3:]:
        column.justify = "right"
    for row in rows:
        megabytes = [f"{size / 1e6:.2f}" for size in (row.least, row.ours)]
        xla, xla_over_least = "-", "-"
        if row.xla is not None:
            xla, xla_over_least = f"{row.xla / 1e6:.2f}", f"{row.xla / row.least:.3f}"
        table.add_row(
            *("x".join(map(str, row.shape)), row.dtype, row.direction),
            *(*megabytes, xla, f"{row.over_least:.3f}", xla_over_least),
        )
    console.print(table)
    if not has_xla():
        console.say("XLA's bytes are skipped: need JAX's CUDA plugin; run `make bench`")
    for target, is_met in targets(rows).items():
        console.say(f"{'met' if is_met else 'missed'}: {target}")


# The figure.

_COLORS = {
    "x, dy, y, dx": "#4477aa",
    "float32 copies of x": "#cc6677",
    "all else": "#bbbbbb",
}


def draw(passes: list[Traffic], path: Path) -> None:
    """Draws the bytes read and written in each pass, by XLA's code and by ours."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    rows: list[str] = []
    for traffic in passes:
        for name, parts in (
            (f"{traffic.direction}: XLA", _xla_parts(traffic)),
            (f"{traffic.direction}: jaxload", _our_parts(traffic)),
        ):
            left = 0.0
            for label, access, num_bytes in parts:
                axes.barh(
                    len(rows),
                    num_bytes / 1e6,
                    left=left,
                    color=_COLORS[label],
                    hatch="//" if access == "write" else None,
                    edgecolor="white",
                )
                left += num_bytes / 1e6
            rows.append(name)
        axes.axvline(
            traffic.least / 1e6,
            color="black",
            linestyle=":" if traffic.direction == "forward" else "--",
            label=f"least possible, {traffic.direction}",
        )
    for label, color in _COLORS.items():
        axes.barh(0, 0, color=color, label=label)
    axes.barh(0, 0, color="white", edgecolor="black", hatch="//", label="written")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    shape = "x".join(map(str, passes[0].shape))
    axes.set_xlabel(f"MB of HBM, {shape} {passes[0].dtype}, H100 (not run on one)")
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


_Parts = list[tuple[str, str, int]]  # Legend entry, read or write, bytes.


def _our_parts(traffic: Traffic) -> _Parts:
    parts = []
    for name, counts in traffic.ours_by_array.items():
        label = "x, dy, y, dx" if name in ("x", "dy", "y", "dx") else "all else"
        parts += zip((label, label), ("read", "write"), counts, strict=True)
    return _merged(parts)


def _xla_parts(traffic: Traffic) -> _Parts:
    num_elements = math.prod(traffic.shape)
    parts = []
    for kernel in traffic.xla_kernels:
        for access, arrays in (("read", kernel["reads"]), ("write", kernel["writes"])):
            for array, num_bytes in arrays.items():
                large = math.prod(map(int, array[:-1].split("[")[1].split(",")))
                label = "all else"
                if large == num_elements:
                    is_copy = array.startswith("f32") and traffic.dtype != "float32"
                    label = "float32 copies of x" if is_copy else "x, dy, y, dx"
                parts.append((label, access, num_bytes))
    return _merged(parts)


def _merged(parts: _Parts) -> _Parts:
    """Sums the bytes of equal entries, and sorts them as in the legend."""
    totals: dict[tuple[str, str], int] = {}
    for label, access, num_bytes in parts:
        totals[label, access] = totals.get((label, access), 0) + num_bytes
    order = [(label, access) for label in _COLORS for access in ("read", "write")]
    return [(*key, totals[key]) for key in order if totals.get(key)]
