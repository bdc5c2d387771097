"""Small checkpoints, and ways to damage their files."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import place
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.step import TrainState


def small_state(step: int, *, frozen: bool = False) -> TrainState:
    """Returns a state of a few hundred numbers, which differ by step."""
    rng = np.random.default_rng(step)
    weights = {"kernel": rng.standard_normal((16, 16), np.float32)}
    state = TrainState(
        step=jnp.int32(step),
        params=weights,
        frozen=weights if frozen else {},
        opt_state={"mean": rng.standard_normal((16, 16), np.float32)},
        statistics={},
    )
    placement = place(MeshConfig(), jax.devices()[:1])
    return jax.device_put(state, placement.state(state))


def save_steps(directory: Path, *steps: int, frozen: bool = False) -> None:
    """Writes a checkpoint of a small state for each step."""
    with Checkpoints(directory, keep=len(steps)) as checkpoints:
        if frozen:
            checkpoints.save_frozen(small_state(0, frozen=True))
        for step in steps:
            state = small_state(step, frozen=frozen)
            checkpoints.save(step, state, {"step": step})


def files_of(directory: Path) -> list[Path]:
    """Returns all files of a directory."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def delete(path: Path) -> None:
    """Removes a file."""
    path.unlink()


def empty(path: Path) -> None:
    """Removes the content of a file."""
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """Removes the second half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path, bit: int) -> None:
    """Inverts one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
