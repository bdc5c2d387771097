"""Compiles the layer_norm_modulate family for a mesh, and lists its collectives.

Prints JSON: the actual and the expected kernels and collectives of each program.
Also runs the programs if inputs are given:

    python tests/ops/sharded_programs.py [INPUTS.npz RESULTS.npz]
"""

# Shape suffixes: B batch, S tokens, D width.

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled

from jaxload.ops import gated_residual_layer_norm_modulate, layer_norm_modulate

SIZES = {"B": 8, "S": 80, "D": 24}
DTYPE = "bfloat16"  # Dtype of all inputs; sums over tokens must still be float32.

MESH_SHAPE = (4, 2)
MESH_AXES = ("data", "sequence")

CASES = {  # The mesh axes that shard each axis of the arrays.
    "batch": {"B": ("data",)},
    "batch-over-all": {"B": ("data", "sequence")},
    "tokens": {"S": ("sequence",)},
    "tokens-over-all": {"S": ("data", "sequence")},
    "batch-and-tokens": {"B": ("data",), "S": ("sequence",)},
    "width": {"B": ("data",), "D": ("sequence",)},
}

_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)

Finding = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """Results and gradients of one operation, with one sharding of its arrays."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    num_results: int
    case: str

    @property
    def name(self) -> str:
        """Name of the operation and the case."""
        return f"{self.function.__name__}/{self.case}"

    def compile(self, mesh: Mesh) -> Compiled:
        """Compiles from shapes, so that no devices are needed."""

        def run(arguments, cotangents):
            results, vjp = jax.vjp(self._function, *arguments)
            return results, vjp(cotangents)

        specs = [self._spec(mesh, axes) for axes in self.arguments]
        cotangents = [self._spec(mesh, "BSD")] * self.num_results
        return jax.jit(run).lower(specs, cotangents).compile()

    def _function(self, *arguments: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(self.function(*arguments))

    def _spec(self, mesh: Mesh, axes: str) -> jax.ShapeDtypeStruct:
        cut = CASES[self.case]
        return jax.ShapeDtypeStruct(
            [SIZES[axis] for axis in axes],
            DTYPE,
            sharding=NamedSharding(mesh, P(*(cut.get(axis) for axis in axes))),
        )

    def expected(self, mesh: Mesh) -> Finding:
        """Returns the expected kernels, and collectives: float32 sums over tokens.

        Collectives are omitted for a sharded width, which XLA may gather in any way.
        """
        cut = CASES[self.case]
        local = {
            axis: size // math.prod(mesh.shape[name] for name in cut.get(axis, ()))
            for axis, size in SIZES.items()
        }
        local["D"] = SIZES["D"]  # Gathered if sharded.

        def shape(axes: str) -> str:
            dtype = "bf16" if axes == "BSD" else "f32"
            return f"{dtype}[{','.join(str(local[axis]) for axis in axes)}]"

        sums = [shape(axes) for axes in self.arguments if axes == "BD"]
        # Runs have 32 tokens; the limit on the number of runs is not reached.
        num_runs = -(-local["S"] // 32)
        workspace = f"f32[{local['B']},{num_runs},{len(sums)},{local['D']}]"
        results = [shape("BSD")] * self.num_results
        name = f"jaxload_{self.function.__name__}"
        calls = [
            [f"{name}_bwd", [*map(shape, self.arguments), workspace]],
            [f"{name}_fwd", [*results, shape("BS"), shape("BS")]],
        ]
        if "D" in cut:
            return {"calls": calls}
        collectives = [["all-reduce", sums]] if "S" in cut else []
        return {"calls": calls, "collectives": collectives}


PROGRAMS = [
    Program(function, arguments, num_results, case)
    for function, arguments, num_results in (
        (layer_norm_modulate, ("BSD", "BD", "BD"), 1),
        (gated_residual_layer_norm_modulate, ("BSD", "BSD", "BD", "BD", "BD"), 2),
    )
    for case in CASES
]


def find(compiled: Compiled) -> Finding:
    """Returns the kernels and the collectives of a program, with their result types."""
    finding: Finding = {"calls": [], "collectives": []}
    for kind, types, line in _instructions(compiled.as_text() or ""):
        target = re.search(r'custom_call_target="(jaxload_\w+)"', line)
        if target:
            finding["calls"].append([target[1], types])
        if kind in _COLLECTIVES:
            finding["collectives"].append([kind, types])
    return {what: sorted(instructions) for what, instructions in finding.items()}


def _instructions(text: str) -> Iterator[tuple[str, list[str], str]]:
    for line in text.splitlines():
        match = re.search(r" = (.*?) ([a-z][a-z0-9-]*)\(", line)
        if match:
            types = re.findall(r"\w+\[[\d,]*\]", match[1])
            yield match[2].removesuffix("-start"), types, line


def make_mesh(devices: Sequence[Any], axis_type: AxisType) -> Mesh:
    """Builds the mesh of the cases from devices."""
    return Mesh(np.array(devices).reshape(MESH_SHAPE), MESH_AXES, (axis_type,) * 2)


def _run(program: Program, compiled: Compiled, inputs: dict[str, np.ndarray]) -> list:
    name = program.function.__name__
    arrays = [
        jax.device_put(jnp.asarray(inputs[f"{name}/{i}"], DTYPE), sharding)
        for i, sharding in enumerate(jax.tree.leaves(compiled.input_shardings))
    ]
    num_arguments = len(program.arguments)
    results = compiled(arrays[:num_arguments], arrays[num_arguments:])
    return [np.asarray(result, np.float32) for result in jax.tree.leaves(results)]


def main(argv: Sequence[str]):
    """Compiles all programs with both types of mesh axes, and prints them as JSON."""
    jax.config.update("jax_num_cpu_devices", math.prod(MESH_SHAPE))
    jax.config.update("jax_enable_compilation_cache", False)
    inputs = dict(np.load(argv[0])) if argv else {}
    report, results = {}, {}
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        mesh = make_mesh(jax.devices(), axis_type)
        for program in PROGRAMS:
            name = f"{program.name}/{axis_type.name}"
            compiled = program.compile(mesh)
            report[name] = {"found": find(compiled), "expected": program.expected(mesh)}
            if inputs:
                for i, array in enumerate(_run(program, compiled, inputs)):
                    results[f"{name}/{i}"] = array
    if argv:
        np.savez(argv[1], **results)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
