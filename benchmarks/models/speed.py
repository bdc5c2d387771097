"""Time of a Wan transformer, forward and backward, against diffusers in PyTorch.

    python -m benchmarks.models.speed

Both run the same weights on the same inputs in float32, and must agree before they are
timed. They take turns within each round, in separate processes; one is idle while the
other runs. On two cores, other work on the machine makes OpenMP threads wait for each
other, so PyTorch's times are only meaningful on an otherwise idle machine.
"""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.table import Table
from safetensors.numpy import load_file, save_file

from benchmarks.data_loading.torch_process import find_python
from jaxload.console import Console
from jaxload.models import WanConfig, WanTransformer, weights

DIRECTIONS = ("forward", "backward")
NUM_CORES = (1, 2)
MAX_RATIO = 1.0
NUM_ROUNDS = 7
_TOLERANCE = 1e-4  # Relative to an array's largest value.
_PAUSE = 0.5  # Seconds; OpenMP threads spin for a while after their work is done.
_SCRIPT = Path(__file__).with_name("diffusers_process.py")

CONFIG = WanConfig(
    width=384,
    depth=6,
    num_heads=3,
    mlp_width=1536,
    text_dim=256,
    num_text_tokens=128,
    compute_dtype="float32",
)
_LATENT = (5, 32, 32)  # 1,280 tokens.


@dataclasses.dataclass(frozen=True)
class Row:
    """Median seconds of a forward, or forward and backward, pass."""

    num_cores: int
    direction: str
    ours: float
    diffusers: float

    @property
    def ratio(self) -> float:
        """Our time divided by that of diffusers."""
        return self.ours / self.diffusers


class DiffusersProcess:
    """A process with diffusers' model that runs on request."""

    def __init__(self, python: Path):
        self._process = subprocess.Popen(
            [python, _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


class Ours:
    """Our model, compiled."""

    def __init__(self, model: WanTransformer, inputs: dict[str, jax.Array]):
        self.graphdef, self._params = nnx.split(model)
        self._inputs = inputs

        def call(params, inputs):
            model = nnx.merge(self.graphdef, params)
            return model(inputs["latent"], inputs["timestep"], inputs["text"])

        def loss(params, inputs):
            velocity = call(params, inputs)
            return (velocity * inputs["cotangent"]).sum(), velocity

        self._forward = jax.jit(call)
        self._backward = jax.jit(jax.grad(loss, has_aux=True))

    def forward(self) -> jax.Array:
        """Returns the velocity."""
        return jax.block_until_ready(self._forward(self._params, self._inputs))

    def backward(self) -> tuple[nnx.State, jax.Array]:
        """Returns the gradients and the velocity."""
        return jax.block_until_ready(self._backward(self._params, self._inputs))

    def seconds(self, direction: str) -> float:
        """Returns the duration of one call, in seconds."""
        start = time.perf_counter()
        {"forward": self.forward, "backward": self.backward}[direction]()
        return time.perf_counter() - start


def make_model() -> WanTransformer:
    """Creates a model with noise added to all parameters, since some start at zero."""
    graphdef, params = nnx.split(WanTransformer(CONFIG, rngs=nnx.Rngs(0)))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    leaves = [
        leaf + 0.02 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))


def make_inputs() -> dict[str, jax.Array]:
    """Draws random inputs and a cotangent, channels last."""
    keys = jax.random.split(jax.random.key(1), 3)
    shape = (1, *_LATENT, CONFIG.channels)
    text = (1, CONFIG.num_text_tokens, CONFIG.text_dim)
    return {
        "latent": jax.random.normal(keys[0], shape),
        "timestep": jnp.array([500.0]),
        "text": jax.random.normal(keys[1], text),
        "cotangent": jax.random.normal(keys[2], shape),
    }


def core_counts() -> list[int]:
    """Returns the counts in NUM_CORES that this machine has cores for."""
    available = len(os.sched_getaffinity(0))
    return [count for count in NUM_CORES if count <= available]


def measure(python: Path, num_cores: int, num_rounds: int = NUM_ROUNDS) -> list[Row]:
    """Checks that both models agree, then times them on `num_cores` cores.

    Both run in new processes, whose libraries start as many threads as they have cores.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[-num_cores:])  # Inherited by children.
    try:
        with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn")
        ) as pool:
            return pool.submit(_measure, python, num_cores, num_rounds).result()
    finally:
        os.sched_setaffinity(0, cores)


def _measure(python: Path, num_cores: int, num_rounds: int) -> list[Row]:
    model, inputs = make_model(), make_inputs()
    ours, theirs = Ours(model, inputs), DiffusersProcess(python)
    try:
        with tempfile.TemporaryDirectory() as directory:
            _open(theirs, model, inputs, Path(directory))
            _check(ours, theirs, Path(directory))
        seconds: dict[str, dict[str, list[float]]] = {
            direction: {"ours": [], "diffusers": []} for direction in DIRECTIONS
        }
        for i in range(num_rounds + 1):
            for direction in DIRECTIONS:
                turns = {
                    "ours": lambda direction=direction: ours.seconds(direction),
                    "diffusers": lambda direction=direction: theirs.ask(run=direction)[
                        "seconds"
                    ],
                }
                for name in list(turns)[:: 1 if i % 2 else -1]:
                    time.sleep(_PAUSE)
                    taken = turns[name]()
                    if i:  # The first round is warm-up.
                        seconds[direction][name].append(taken)
    finally:
        theirs.close()
    return [
        Row(
            num_cores,
            direction,
            ours=statistics.median(seconds[direction]["ours"]),
            diffusers=statistics.median(seconds[direction]["diffusers"]),
        )
        for direction in DIRECTIONS
    ]


def _open(
    theirs: DiffusersProcess,
    model: WanTransformer,
    inputs: dict[str, jax.Array],
    directory: Path,
) -> None:
    weights.save(model, directory / "weights.safetensors")
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    for name in ("latent", "cotangent"):
        arrays[name] = np.ascontiguousarray(np.moveaxis(arrays[name], -1, 1))
    save_file(arrays, directory / "inputs.safetensors")
    config = {
        "num_attention_heads": CONFIG.num_heads,
        "attention_head_dim": CONFIG.head_width,
        "in_channels": CONFIG.in_channels,
        "out_channels": CONFIG.channels,
        "text_dim": CONFIG.text_dim,
        "ffn_dim": CONFIG.mlp_width,
        "num_layers": CONFIG.depth,
    }
    theirs.ask(
        open={
            "config": config,
            "weights": str(directory / "weights.safetensors"),
            "inputs": str(directory / "inputs.safetensors"),
        }
    )


def _check(ours: Ours, theirs: DiffusersProcess, directory: Path) -> None:
    """Asserts that both models give the same velocity and gradients."""
    grads, velocity = ours.backward()
    # Gradients saved as a model get diffusers' names of their parameters.
    weights.save(nnx.merge(ours.graphdef, grads), directory / "ours.safetensors")
    found = load_file(directory / "ours.safetensors")
    found["velocity"] = np.moveaxis(np.asarray(velocity), -1, 1)
    theirs.ask(save=str(directory / "theirs.safetensors"))
    expected = load_file(directory / "theirs.safetensors")
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    size = max(np.abs(array).max() for array in expected.values())
    for name, array in expected.items():
        # Some gradients, such as those of key biases, are zero except for rounding.
        limit = _TOLERANCE * (np.abs(array).max() + 1e-3 * size)
        error = np.abs(found[name] - array).max()
        assert error <= limit, f"{name}: differs by {error}, expected {limit} at most"
    np.testing.assert_allclose(ours.forward(), velocity, rtol=1e-4, atol=1e-4)


def print_table(rows: list[Row], console: Console) -> None:
    """Prints seconds, ratios and goals."""
    table = Table(
        title="A small Wan transformer on CPU, 1,280 tokens in float32: milliseconds. "
        "Goal: ours no slower",
        caption="Medians. Equal weights and inputs; velocity and gradients agree.",
    )
    for column in ("", "cores", "ours", "diffusers", "ours/diffusers", "goal"):
        table.add_column(column, justify="right" if column else "left")
    names = {"forward": "forward", "backward": "forward and backward"}
    for row in rows:
        table.add_row(
            names[row.direction],
            str(row.num_cores),
            f"{1e3 * row.ours:.0f}",
            f"{1e3 * row.diffusers:.0f}",
            f"{row.ratio:.2f}",
            "held" if row.ratio <= MAX_RATIO else "[bold red]NOT HELD[/]",
        )
    console.print(table)


def missing_tools() -> str | None:
    """Returns a message with the make target if diffusers is missing, else None."""
    python = find_python()
    if python is None:
        return "diffusers is not installed; run `make torch`"
    command = [python, "-c", "import diffusers"]
    done = subprocess.run(command, capture_output=True, check=False)
    return "diffusers is not installed; run `make torch`" if done.returncode else None


def main() -> int:
    """Runs `python -m benchmarks.models.speed`; returns the exit code."""
    python = find_python()
    what = missing_tools()
    if what or python is None:
        print(what)
        return 1
    rows = [row for count in core_counts() for row in measure(python, count)]
    print_table(rows, Console())
    return 0 if all(row.ratio <= MAX_RATIO for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
