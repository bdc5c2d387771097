"""Memory and time of loading and saving a model's weights.

    python -m benchmarks.models.loading [--json]

A file of random bfloat16 weights, 2 GB by default, is loaded and saved in a separate
process. Neither may hold the model in memory twice.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import ml_dtypes
import numpy as np
from flax import nnx
from rich.table import Table

from jaxload.console import Console
from jaxload.models import WanConfig, WanTransformer, weights
from jaxload.models.wan.weights import WAN
from jaxload.models.weights import files, names
from jaxload.models.weights.variables import variables_of

Result = TypeVar("Result")
MAX_LOADING = 1.3
MAX_SAVING = 0.3
"""Limits on the growth of peak memory, as a multiple of the file's bytes."""

CONFIG = WanConfig(
    width=2048,
    depth=14,
    num_heads=16,
    mlp_width=8192,
    text_dim=4096,
    num_text_tokens=512,
    param_dtype="bfloat16",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Memory and time of loading or saving the file."""

    name: str
    file_bytes: int
    peak_growth: int
    seconds: float
    limit: float

    @property
    def ratio(self) -> float:
        """Growth of peak memory divided by the file's bytes."""
        return self.peak_growth / self.file_bytes

    @property
    def held(self) -> bool:
        """True if the ratio is within the limit."""
        return self.ratio <= self.limit


def write_random(path: Path, config: WanConfig) -> None:
    """Writes a file of random weights, a few megabytes at a time."""
    model = nnx.eval_shape(lambda: WanTransformer(config, rngs=nnx.Rngs(0)))
    variables = variables_of(nnx.state(model))
    shapes = {p: variable.get_value().shape for p, variable in variables.items()}
    dtype = np.dtype(ml_dtypes.bfloat16)
    tensors = [
        files.Described(name, dtype, tensor.shape)
        for name, tensor in names.tensors_of(WAN, "diffusers", shapes).items()
    ]
    block = np.random.default_rng(0).standard_normal(1 << 22, np.float32).astype(dtype)

    def chunks() -> Iterator[np.ndarray]:
        for tensor in tensors:
            size = int(np.prod(tensor.shape))
            for start in range(0, size, block.size):
                yield block[: min(block.size, size - start)]

    files.write(path, tensors, chunks())


def measure(path: Path, config: WanConfig) -> list[Row]:
    """Measures loading and saving in a separate process."""
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(_measure, path, config).result()


def _measure(path: Path, config: WanConfig) -> list[Row]:
    jax.block_until_ready(jax.numpy.zeros(8))  # Initializes the backend.
    size = path.stat().st_size
    model, growth, seconds = _run(lambda: weights.load(path, config))
    loading = Row(
        name="load",
        file_bytes=size,
        peak_growth=growth,
        seconds=seconds,
        limit=MAX_LOADING,
    )
    copy = path.with_name("copy.safetensors")
    _, growth, seconds = _run(lambda: weights.save(model, copy))
    saving = dataclasses.replace(
        loading, name="save", peak_growth=growth, seconds=seconds, limit=MAX_SAVING
    )
    return [loading, saving]


def _run(function: Callable[[], Result]) -> tuple[Result, int, float]:
    Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    before, start = _status_bytes("VmRSS"), time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    return result, _status_bytes("VmHWM") - before, seconds


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Prints the rows, and which limits were held."""
    table = Table(
        title=f"Weights of {rows[0].file_bytes / 1e9:.2f} GB in bfloat16: peak memory "
        "above that before",
        caption="Resident memory of the process; files may be in the page cache.",
    )
    for column in ("", "peak growth", "of the file", "time", "limit"):
        table.add_column(column, justify="right")
    table.add_column("goal")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.peak_growth / 1e6:,.0f} MB",
            f"{row.ratio:.2f}",
            f"{row.seconds:.1f} s",
            f"{row.limit:.2f}",
            "held" if row.held else "[bold red]NOT HELD[/]",
        )
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m benchmarks.models.loading`; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=CONFIG.depth, help="blocks")
    parser.add_argument("--width", type=int, default=CONFIG.width, help="channels")
    parser.add_argument("--mlp-width", type=int, default=CONFIG.mlp_width)
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    args = parser.parse_args(argv)
    config = dataclasses.replace(
        CONFIG,
        width=args.width,
        depth=args.depth,
        num_heads=args.width // CONFIG.head_width,
        mlp_width=args.mlp_width,
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.safetensors")
        write_random(path, config)
        rows = measure(path, config)
    if args.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        print_table(rows, Console())
    return 0 if all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
