"""Bytes of a run's programs on a type of GPU, which need not be in this machine.

The programs are compiled in a child process (`python -m
jaxload.planning.target_compiler` with a request on its stdin). Results are cached on
disk per program, so that a second plan compiles nothing.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.stages import Compiled, Lowered

from jaxload import targets
from jaxload.balance.program import Program
from jaxload.config import Config, from_dict, to_dict
from jaxload.errors import InputError
from jaxload.parallel.config import MeshConfig
from jaxload.planning.footprint import (
    LocalCompiler,
    Request,
    device_batch_bytes,
    program_bytes,
    resident_bytes,
)
from jaxload.targets import Gpu, ResultCache, find_target

_SECTIONS = ("model", "flow", "optimizer", "sample")
"""Sections of the config that programs depend on."""

_NO_TILES = "Couldn't find output tile sizes"


class TargetCompiler:
    """Compiler of a run's programs for a number of GPUs of one type."""

    def __init__(
        self, config: Config, mesh: MeshConfig, target: Gpu, cache: ResultCache
    ):
        """Prepares to compile the programs of a run.

        Args:
            config: Config of the run.
            mesh: Sizes of the mesh, with the number of groups.
            target: Type of GPU.
            cache: Cache of earlier results.
        """
        self._config = config
        self._mesh = mesh
        self._target = target
        self._cache = cache

    @property
    def device_kind(self) -> str:
        """Name of the type of device that programs are compiled for."""
        return self._target.name

    def footprints(
        self, requests: Sequence[Request], *, on_done: Callable[[], None]
    ) -> dict[Request, int]:
        """Compiles programs and returns the peak bytes per device of each.

        The bytes include the training state that stays on the device although the
        program does not read it. `on_done` is called after each program.
        """
        found: dict[Request, int] = {}
        for request in requests:
            result = self._cache.get(self._key(request)) if self._is_cached else None
            if result is not None:
                found[request] = result["bytes"]
                on_done()
        missing = [request for request in requests if request not in found]

        def on_reply(reply: dict[str, Any]) -> None:
            request = missing[reply["index"]]
            found[request] = reply["bytes"]
            if self._is_cached:
                self._cache.put(self._key(request), {"bytes": reply["bytes"]})
            on_done()

        if missing:
            targets.run_module(__name__, self._message(missing), on_reply)
        return found

    def batch_bytes(self, program: Program) -> int:
        """Returns the bytes of one micro-batch on each device."""
        return device_batch_bytes(self._config.model, program)

    @property
    def _is_cached(self) -> bool:
        # Keys cover only the code of jaxload, not that of a family defined elsewhere.
        return _module_of(self._config).startswith("jaxload.")

    def _message(self, requests: Sequence[Request]) -> dict[str, Any]:
        return {
            "config": to_dict(self._config),
            "family": _module_of(self._config),
            "mesh": dataclasses.asdict(self._mesh),
            "target": self._target.name,
            "requests": [_to_json(request) for request in requests],
        }

    def _key(self, request: Request) -> dict[str, Any]:
        content = to_dict(self._config)
        return {
            "request": _to_json(request),
            "config": {name: content[name] for name in _SECTIONS},
            "mesh": dataclasses.asdict(self._mesh),
            "target": dataclasses.asdict(self._target),
            "source": targets.source_digest(),
        }


def _module_of(config: Config) -> str:
    return type(config.model).__module__


def _register(module: str) -> None:
    """Imports the module that registers the run's model family."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"model family in {module}: expected a module that another process can "
            f"import ({error}); define the family in a file on PYTHONPATH"
        ) from error


def _to_json(request: Request) -> Any:
    return request.to_dict() if isinstance(request, Program) else request


def _from_json(content: Any) -> Request:
    return Program.from_dict(content) if isinstance(content, dict) else content


def _handle(message: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Compiles the programs of a request, in the child process."""
    from jaxload.parallel.placement import place
    from jaxload.training.lowering import Lowering
    from jaxload.training.step import make_trainer

    _register(message["family"])
    config, mesh = from_dict(message["config"]), MeshConfig(**message["mesh"])
    num_devices = mesh.replica * mesh.devices_per_group
    devices = find_target(message["target"]).devices(num_devices)
    trainer = make_trainer(
        config.model, config.flow, config.optimizer, seed=config.train.seed
    )
    placement = place(mesh, devices)
    lowering = Lowering(trainer, placement)
    compiler = LocalCompiler(
        lowering, placement.groups[0], config.sample, shift=config.flow.shift
    )
    for index, content in enumerate(message["requests"]):
        request = _from_json(content)
        num_bytes = program_bytes(_compile(compiler.lower(request)))
        num_bytes += resident_bytes(lowering, request)
        reply({"index": index, "bytes": num_bytes})


def _compile(lowered: Lowered) -> Compiled:
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if _NO_TILES not in str(error):
            raise
        # XLA cannot autotune without a GPU, and its default tiles do not suit a 36 x 32
        # matmul in float32, which a tiny model has. cuBLAS takes any size, at the cost
        # of 4 MB of workspace.
        return lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})


if __name__ == "__main__":
    targets.serve(_handle)
