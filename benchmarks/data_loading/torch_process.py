"""Runs torch_loader.py with a Python that has PyTorch, if there is one."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_loading.samples import NUM_TEXT_TOKENS, Dataset
from jaxload.data.record import decode_record
from jaxload.data.source import Arrays

VARIABLE = "JAXLOAD_BENCH_TORCH"
_ROOT = Path(__file__).parents[2]
_SCRIPT = Path(__file__).with_name("torch_loader.py")


def find_python() -> Path | None:
    """Returns the path of a Python with PyTorch, or None if there is none."""
    given = os.environ.get(VARIABLE)
    path = Path(given) if given else _ROOT / ".venv" / "torch" / "bin" / "python"
    return path if path.exists() else None


class TorchProcess:
    """A process with a PyTorch DataLoader that reads on request."""

    def __init__(self, python: Path):
        self._process = subprocess.Popen(
            [python, _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def open(
        self,
        dataset: Dataset,
        batches: Sequence[list[int]],
        *,
        num_workers: int,
        num_prefetch: int,
    ) -> None:
        """Starts a DataLoader over these micro-batches."""
        order = {
            "directory": str(dataset.files),
            "num_samples": len(dataset.manifest),
            "num_text_tokens": NUM_TEXT_TOKENS,
            "num_workers": num_workers,
            "num_prefetch": num_prefetch,
            "batches": batches,
        }
        self._ask({"open": order})

    def read(self, path: Path) -> Arrays:
        """Returns the next micro-batch, passed through a file."""
        self._ask({"save": str(path)})
        batch = decode_record(path.read_bytes())
        path.unlink()
        return {"tokens": batch.tokens, "text": batch.text}

    def run(self, num_warm: int, num_timed: int) -> tuple[float, int]:
        """Returns seconds and samples of `num_timed` micro-batches, after a warm-up."""
        answer = self._ask({"run": [num_warm, num_timed]})
        return answer["seconds"], answer["num_samples"]

    def close_loader(self) -> None:
        """Ends the loader's processes."""
        self._ask({"close": True})

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()
        assert self._process.returncode == 0

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{_SCRIPT} ended at {next(iter(order))!r}; see its output above"
            )
        return json.loads(line)


def without_ids(batch: Arrays) -> dict[str, np.ndarray]:
    """Returns the arrays without ids, which PyTorch's micro-batches do not have."""
    return {name: array for name, array in batch.items() if name != "id"}
