"""Tests of jaxload.training.checkpoint."""

import contextlib
import dataclasses
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.models import make_model
from jaxload.parallel.config import MeshConfig
from jaxload.parallel.placement import place
from jaxload.runs.setup import this_placement, trainer_of
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.compile import CompileCounter
from jaxload.training.intact import clear_the_way, newest_intact
from jaxload.training.lowering import Lowering
from jaxload.training.step import TrainState, split_trained
from tests.training.damage import save_steps

GROUPS = (MeshConfig(replica=2), 2)
OTHER_PLACEMENTS = {
    "fsdp": (MeshConfig(fsdp=2), 2),
    "tensor": (MeshConfig(tensor=2), 2),
    "one device": (MeshConfig(), 1),
}


def abstract_state(config: Config) -> TrainState:
    return Lowering(trainer_of(config), this_placement(config)).state


def placed(config: Config, state: TrainState) -> TrainState:
    return jax.device_put(state, this_placement(config).state(state))


@pytest.fixture(scope="module")
def state(debug_config: Config) -> TrainState:
    params = nnx.state(make_model(debug_config.model, rngs=nnx.Rngs(3)))
    state, _ = trainer_of(debug_config).init(params, nnx.State({}))
    return placed(debug_config, state)


@pytest.fixture(scope="module")
def adapted_config(debug_config: Config) -> Config:
    config = config_lib.override(debug_config, "model.lora_rank=2")
    return config_lib.override(config, "model.param_dtype=bfloat16")


@pytest.fixture(scope="module")
def adapted(adapted_config: Config) -> TrainState:
    """Returns the state of a run that trains only adapters."""
    return adapted_state(adapted_config, seed=3)


def adapted_state(config: Config, seed: int) -> TrainState:
    model = split_trained(make_model(config.model, rngs=nnx.Rngs(seed)))
    state, _ = trainer_of(config).init(*model)
    return placed(config, state)


def latest(directory: Path) -> int | None:
    return newest_intact(directory, Console(quiet=True))


def test_round_trip_bit_for_bit(
    debug_config: Config, state: TrainState, tmp_path: Path
):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(7, state, {"step": 7})
    assert latest(tmp_path) == 7
    like = abstract_state(debug_config)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        restored = checkpoints.restore(7, like)
        model = checkpoints.restore_model(7, like)
        assert checkpoints.restore_data(7) == {"step": 7}
    assert_same(restored, state)
    assert_same(model, state.model)


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.sharding == two.sharding


def state_on(config: Config, mesh: MeshConfig, num_devices: int) -> TrainState:
    """Returns the abstract state of a placement on some of the devices."""
    placement = place(mesh, jax.devices()[:num_devices])
    return Lowering(trainer_of(config), placement).state


@pytest.fixture(scope="module")
def grouped(debug_config: Config) -> TrainState:
    """Returns the state of a run on two groups, with different values in each leaf."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jax.device_put(
            (100 * rng.standard_normal(x.shape)).astype(x.dtype), x.sharding
        ),
        state_on(debug_config, *GROUPS),
    )


@pytest.fixture(scope="module")
def saved(grouped: TrainState, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a checkpoint of two groups; returns its directory."""
    directory = tmp_path_factory.mktemp("grouped")
    with Checkpoints(directory, keep=1) as checkpoints:
        checkpoints.save(1, grouped, {"step": 1})
    return directory


@pytest.mark.parametrize("name", OTHER_PLACEMENTS)
def test_two_groups_resume_on_other_placements_and_back(
    debug_config: Config, grouped: TrainState, saved: Path, tmp_path: Path, name: str
):
    like = state_on(debug_config, *OTHER_PLACEMENTS[name])
    shardings = jax.tree.map(lambda x: x.sharding, like)
    is_whole = [s.is_fully_replicated for s in jax.tree.leaves(shardings)]
    assert all(is_whole) == (name == "one device")
    with Checkpoints(saved, keep=1) as checkpoints:
        there = checkpoints.restore(1, like)
    assert_same(there, jax.device_put(grouped, shardings))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(2, there, {"step": 2})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        back = checkpoints.restore(2, state_on(debug_config, *GROUPS))
    assert_same(back, grouped)


def test_keeps_the_newest(state: TrainState, tmp_path: Path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state, {"step": step})
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["2", "3"]


def test_an_error_does_not_lose_the_checkpoint_being_written(
    state: TrainState, tmp_path: Path
):
    def save_and_fail() -> None:
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            checkpoints.save(5, state, {"step": 5})
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        save_and_fail()
    assert latest(tmp_path) == 5


def test_a_checkpoint_that_was_not_finished_does_not_count(
    state: TrainState, tmp_path: Path
):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, state, {"step": 1})
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    assert latest(tmp_path) == 1


def test_nothing_saved_is_nothing_to_resume(tmp_path: Path):
    assert latest(tmp_path) is None


def test_frozen_parameters_lie_beside_the_checkpoints_once(
    adapted_config: Config, adapted: TrainState, tmp_path: Path
):
    with Checkpoints(tmp_path, keep=2) as checkpoints, CompileCounter() as compiles:
        checkpoints.save_frozen(adapted)
        for step in (1, 2):
            checkpoints.save(step, adapted, {"step": step})
    assert compiles.count == 0
    stored = ocp.PyTreeCheckpointer().metadata(tmp_path / "2" / "state").item_metadata
    assert stored is not None
    expected = jax.tree.leaves(dataclasses.replace(adapted, frozen=None))
    assert len(jax.tree.leaves(stored.tree)) == len(expected)
    like = abstract_state(adapted_config)
    assert latest(tmp_path) == 2
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert_same(checkpoints.restore(2, like), adapted)
        assert_same(checkpoints.restore_model(2, like), adapted.model)


def test_frozen_parameters_of_a_start_without_a_checkpoint_are_replaced(
    adapted_config: Config, adapted: TrainState, tmp_path: Path
):
    (tmp_path / "frozen.orbax-checkpoint-tmp" / "d").mkdir(parents=True)
    like = abstract_state(adapted_config)
    other = adapted_state(adapted_config, seed=4)
    for state in (other, adapted):
        assert latest(tmp_path) is None
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            checkpoints.save_frozen(state)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, adapted, {"step": 1})
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert_same(checkpoints.restore(1, like), adapted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "frozen"]


def test_no_checkpoint_is_without_its_frozen_parameters(
    adapted_config: Config, adapted: TrainState, tmp_path: Path
):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        with pytest.raises(AssertionError):
            checkpoints.save(1, adapted, {"step": 1})
        checkpoints.save_frozen(adapted)
        checkpoints.save(1, adapted, {"step": 1})


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Makes every write beyond a number of bytes of a file fail."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 20, 200, 500, 1_000, 2_000])
def test_a_write_that_fails_is_one_line_and_leaves_the_older_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture, size: int
):
    save_steps(tmp_path, 1)
    with largest_file(size), pytest.raises(InputError) as caught:
        save_steps(tmp_path, 2)
    assert str(caught.value) == (
        f"{tmp_path / '2'}: cannot be written (File too large); the checkpoints "
        "before it are complete; make room, then continue with --resume"
    )
    assert latest(tmp_path) == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 256 KB, if this process may."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if os.getuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_one_line_and_leaves_the_older_checkpoint(
    small_disk: Path, capfd: pytest.CaptureFixture
):
    save_steps(small_disk, 1)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4_096))
    with pytest.raises(InputError, match=r"2: cannot be written \(No space left on d"):
        save_steps(small_disk, 2)
    assert latest(small_disk) == 1
    ballast.unlink()
    clear_the_way(small_disk, 1)
    save_steps(small_disk, 3)
    assert latest(small_disk) == 3
    assert "Traceback" not in capfd.readouterr().err
