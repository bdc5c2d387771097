"""Runs `jaxload.train` several times in one process with a given number of devices.

Started by test_meshes.py as `python mesh_runs.py NUM_DEVICES`. Reads lists of
arguments, each `["plan" | "train", ...]`, as JSON from stdin.
"""

import json
import sys

import jax

from jaxload import plan, train

COMMANDS = {"plan": plan.main, "train": train.main}


def main() -> None:
    """Runs each list of arguments; stops at the first that fails."""
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
    for name, *arguments in json.load(sys.stdin):
        code = COMMANDS[name](arguments)
        if code:
            sys.exit(code)
        jax.clear_caches()


if __name__ == "__main__":
    main()
