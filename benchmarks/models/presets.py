"""Parameters, FLOPs and memory to train each preset, by clip shape.

    python -m benchmarks.models.presets              # the table of docs/models.md
    python -m benchmarks.models.presets NAME FxHxW   # bytes of one entry

FLOPs are of one sample's forward and backward pass, with the preset's own remat policy.
Bytes are per device, for eight H100s that share the model (FSDP), with one sample on
each: the bytes of the compiled gradient program, plus AdamW's state and the trainer's
gradient sums. Needs the tools that benchmarks.h100 needs.
"""

import math
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.stages import Compiled

from benchmarks.models.h100 import USABLE_BYTES, missing_tools
from jaxload import targets
from jaxload.console import Console, phase
from jaxload.models import ModelConfig, all_presets, family_of, make_model, preset
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import place
from jaxload.parallel.sharding_rules import sharded
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.footprint import program_bytes
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape
from jaxload.targets.child_process import run_python

NUM_DEVICES = 8
# Latents of 1, 33 and 81 frames of 480 x 832, and of 81 of 720 x 1280.
SHAPES = (Shape(1, 60, 104), Shape(9, 60, 104), Shape(21, 60, 104), Shape(21, 90, 160))
_BESIDE = 12  # Bytes per parameter: two moments and a gradient sum.


def num_parameters(config: ModelConfig) -> int:
    """Counts the parameters without allocating them."""
    model = nnx.eval_shape(lambda: make_model(config, rngs=nnx.Rngs(0)))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model)))


def device_bytes(config: ModelConfig, shape: Shape) -> int:
    """Returns the bytes per device to train on one sample of a shape per device."""
    beside = _BESIDE * num_parameters(config) // NUM_DEVICES
    return program_bytes(_compile_gradients(config, shape)) + beside


def _compile_gradients(config: ModelConfig, shape: Shape) -> Compiled:
    devices = targets.H100.devices(NUM_DEVICES)
    (group,) = place(MeshConfig(fsdp=NUM_DEVICES), devices).groups
    model = nnx.eval_shape(lambda: make_model(config, rngs=nnx.Rngs(0)))
    graphdef, params = nnx.split(model)
    shardings = group.state(params)
    params = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        params,
        shardings,
    )
    inputs = {
        name: jax.ShapeDtypeStruct(
            (NUM_DEVICES, *dims), jnp.float32, sharding=group.batch
        )
        for name, dims in _input_shapes(config, shape).items()
    }

    @jax.grad
    def gradients(params, inputs):
        return jnp.square(nnx.merge(graphdef, params)(**inputs)).sum()

    with sharded(group.mesh):
        jitted = jax.jit(gradients, out_shardings=shardings)
        return jitted.lower(params, inputs).compile()


def _input_shapes(config: ModelConfig, shape: Shape) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each model input, without the batch axis."""
    shapes: dict[str, tuple[int, ...]] = {
        "latent_BFHWC": (shape.frames, shape.height, shape.width, config.in_channels),
        "timestep_B": (),
        "text_BTE": (config.num_text_tokens, config.text_dim),
    }
    return shapes | dict(family_of(config).extra_inputs(config))


def measure(name: str, shape: Shape) -> int:
    """Runs `device_bytes` in a process that can compile for GPUs."""
    module = "benchmarks.models.presets"
    return int(run_python("-m", module, name, str(shape)))


def print_table(progress: Console) -> None:
    """Prints the table of docs/models.md."""
    presets = all_presets()
    with phase(progress, "compiling for H100s", len(presets) * len(SHAPES)) as advance:
        shapes = (f"{shape}: {shape.tokens:,} tokens" for shape in SHAPES)
        print("| preset | parameters |", *(f"{shape} |" for shape in shapes))
        print("|---|---|" + "---|" * len(SHAPES))
        for name, config in presets.items():
            cells = [f"`{name}`", f"{num_parameters(config):,}"]
            assert config.remat != "auto"
            cost = analytic_cost(config).laws[config.remat]
            for shape in SHAPES:
                flops, num_bytes = float(cost(1, shape.tokens)), measure(name, shape)
                over = "" if num_bytes <= USABLE_BYTES else " (over)"
                cells.append(
                    f"{_rounded(flops / 1e12)} TFLOP, {_rounded(num_bytes / 1e9)} GB"
                    + over
                )
                advance()
            print("|", " | ".join(cells), "|", flush=True)


def _rounded(value: float) -> str:
    """Formats with two significant digits, or as a whole number from 10 on."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def main(argv: Sequence[str]) -> int:
    """Runs `python -m benchmarks.models.presets`; returns the exit code."""
    if argv:
        name, shape = argv
        print(device_bytes(preset(name), Shape.parse(shape, DEFAULT)))
        return 0
    what = missing_tools()
    if what:
        print(f"presets: {what}")
        return 1
    print_table(Console(stderr=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
