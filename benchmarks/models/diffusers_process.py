"""Runs and times diffusers' Wan transformer on request.

    python benchmarks/models/diffusers_process.py

Needs torch and diffusers, not jaxload. Each line of JSON on stdin is a request, and is
answered by a line of JSON on stdout. The process is idle between requests.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from diffusers import (  # pyright: ignore[reportMissingImports]
    WanTransformer3DModel,
)
from safetensors.torch import load_file, save_file


class Runner:
    """A model and its inputs."""

    def __init__(self, config: dict[str, Any], weights: str, inputs: str):
        self._model = WanTransformer3DModel(**config)
        # Strict by default: missing or unexpected weights are an error.
        self._model.load_state_dict(load_file(weights))
        arrays = load_file(inputs)
        self._cotangent = arrays.pop("cotangent")
        self._arguments = {
            "hidden_states": arrays["latent"],
            "timestep": arrays["timestep"],
            "encoder_hidden_states": arrays["text"],
        }

    def forward(self) -> torch.Tensor:
        """Returns the velocity."""
        with torch.inference_mode():
            return self._call()

    def backward(self) -> torch.Tensor:
        """Returns the velocity, and leaves the gradients in the parameters."""
        self._model.zero_grad(set_to_none=True)
        output = self._call()
        (output * self._cotangent).sum().backward()
        return output.detach()

    def _call(self) -> torch.Tensor:
        (output,) = self._model(**self._arguments, return_dict=False)
        return output

    def save(self, path: Path) -> None:
        """Writes the velocity, and all gradients by parameter name."""
        arrays = {"velocity": self.backward()}
        for name, parameter in self._model.named_parameters():
            assert parameter.grad is not None, name
            arrays[name] = parameter.grad
        save_file({name: a.contiguous() for name, a in arrays.items()}, path)


def seconds_of(run: Any) -> float:
    """Returns the duration of one call, in seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> int:
    """Answers requests until stdin ends."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    runner: Runner | None = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if "open" in order:
            runner = Runner(**order["open"])
        assert runner is not None
        if "save" in order:
            runner.save(Path(order["save"]))
        if "run" in order:
            run = {"forward": runner.forward, "backward": runner.backward}[order["run"]]
            answer["seconds"] = seconds_of(run)
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
