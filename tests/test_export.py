"""Tests of training from given weights, and of `python -m jaxload.export`."""

import dataclasses
import gc
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxload import config as config_lib
from jaxload import export as export_command
from jaxload import train as train_command
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.models import preset, weights
from jaxload.runs.setup import this_placement, trainer_of
from jaxload.runs.start import check_start, load_start
from jaxload.runs.workdir import WorkDir
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.events import STEP, read_events
from jaxload.training.lowering import Lowering
from jaxload.training.step import TrainState
from tests.models.tiny import make, randomized

DEBUG = Path(__file__).parents[1] / "configs" / "debug.py"
ADAPTERS = ("model.lora_rank=2", "model.lora_targets=q,mlp_out")


@pytest.fixture(scope="module")
def given(debug_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes random weights for the debug config's model; returns the directory."""
    directory = tmp_path_factory.mktemp("given") / "transformer"
    weights.save(randomized(make(debug_config.model), size=0.05), directory)
    return directory


def train(
    config: Config, workdir: Path, *assignments: str, resume: bool = False
) -> None:
    fields = [f"data.path={config.data.path}", "train.num_steps=3", *assignments]
    sets = [word for field in fields for word in ("--set", field)]
    args = ["--config", str(DEBUG), "--workdir", str(workdir), *sets]
    train_command.main([*args, "--resume"] if resume else args)


def tensors(path: Path) -> dict[str, np.ndarray]:
    return load_file(path / "diffusion_pytorch_model.safetensors")


@pytest.mark.slow
def test_only_adapters_are_trained_and_exports_have_them_merged(
    debug_config: Config, debug_manifest: Manifest, given: Path, tmp_path: Path
):
    train(
        debug_config,
        tmp_path / "run",
        f"train.weights={given}",
        *ADAPTERS,
    )
    export_command.main(["--workdir", str(tmp_path / "run")])
    before, after = tensors(given), tensors(tmp_path / "run" / "weights")
    assert before.keys() == after.keys()
    changed = {name for name in before if (before[name] != after[name]).any()}
    assert changed == {
        f"blocks.{i}.{part}.weight"
        for i in range(2)
        for part in ("attn1.to_q", "attn2.to_q", "ffn.net.2")
    }


def num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_restores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Asserts that restores hold one state in memory; returns the restored steps."""
    gc.collect()
    others = num_bytes(jax.live_arrays())
    restore, steps = Checkpoints.restore, []

    def check(checkpoints: Checkpoints, step: int, like: TrainState) -> TrainState:
        # The sums of each group, as large as the trained parameters, and some scalars.
        sums = jax.device_count() * num_bytes(like.params)
        allowed = others + sums + 1_000
        assert num_bytes(jax.live_arrays()) < allowed
        state = restore(checkpoints, step, like)
        assert num_bytes(jax.live_arrays()) < allowed + num_bytes(like)
        steps.append(step)
        return state

    monkeypatch.setattr(Checkpoints, "restore", check)
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [(), ADAPTERS], ids=["whole", "adapters"])
def test_a_resume_needs_no_weights_and_holds_one_model(
    debug_config: Config,
    debug_manifest: Manifest,
    given: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    adapters: tuple[str, ...],
):
    moved = tmp_path / "given"
    shutil.copytree(given, moved)
    sets = (f"train.weights={moved}", *adapters)
    unbroken, stopped = WorkDir(tmp_path / "unbroken"), WorkDir(tmp_path / "stopped")
    train(debug_config, unbroken.path, *sets, "train.num_steps=5")
    train(debug_config, stopped.path, *sets)
    shutil.rmtree(moved)
    restored = check_restores(monkeypatch)
    train(debug_config, stopped.path, *sets, "train.num_steps=5", resume=True)
    losses, expected = (
        [(row.step, row.values["loss"]) for row in read_events(workdir.metrics, STEP)]
        for workdir in (stopped, unbroken)
    )
    assert losses == expected
    assert restored == [3]
    assert (stopped.checkpoints / "frozen").exists() == bool(adapters)


@pytest.mark.slow
def test_a_run_is_not_replaced_by_its_weights(
    debug_config: Config, debug_manifest: Manifest, tmp_path: Path
):
    workdir = WorkDir(tmp_path / "run")
    train(debug_config, workdir.path)
    before = workdir.config.read_text()
    arguments = ["--workdir", str(workdir.path), "--out", str(workdir.path)]
    with pytest.raises(InputError, match=r"a config\.json that is not a model"):
        export_command.main([*arguments, "--overwrite"])
    assert workdir.config.read_text() == before


@pytest.mark.slow
def test_a_resume_without_its_frozen_parameters_changes_nothing(
    debug_config: Config, debug_manifest: Manifest, given: Path, tmp_path: Path
):
    sets = (f"train.weights={given}", *ADAPTERS)
    workdir = WorkDir(tmp_path / "run")
    train(debug_config, workdir.path, *sets)
    shutil.rmtree(workdir.checkpoints / "frozen")
    with pytest.raises(InputError, match="frozen: expected the frozen parameters of"):
        train(debug_config, workdir.path, *sets, "train.num_steps=5", resume=True)
    assert workdir.is_finished(workdir.read_config())


def test_a_run_resumes_from_the_weights_that_it_began_with(
    debug_config: Config, given: Path, tmp_path: Path
):
    WorkDir(tmp_path).begin(config_lib.override(debug_config, f"train.weights={given}"))
    with pytest.raises(InputError, match=r"different run: train\.weights is '.*given"):
        train(debug_config, tmp_path, "train.weights=/other", resume=True)


@pytest.mark.parametrize(
    "assignments",
    [(), ADAPTERS, (*ADAPTERS, "model.param_dtype=bfloat16")],
    ids=["whole", "adapters", "bfloat16"],
)
def test_given_weights_become_the_state_and_are_not_copied(
    debug_config: Config, given: Path, assignments: tuple[str, ...]
):
    config = config_lib.override(debug_config, f"train.weights={given}")
    for assignment in assignments:
        config = config_lib.override(config, assignment)
    lowering = Lowering(trainer_of(config), this_placement(config))
    init = lowering.init("weights").compile()
    memory = init.memory_analysis()
    assert memory is not None
    model = lowering.state.model
    assert memory.alias_size_in_bytes == num_bytes(model)
    assert memory.temp_size_in_bytes == 0
    loaded = load_start(config, lowering, Console(quiet=True))
    expected = [np.array(leaf) for leaf in jax.tree.leaves(loaded)]
    state, _ = init(*loaded)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(loaded))
    for found, value in zip(jax.tree.leaves(state.model), expected, strict=True):
        np.testing.assert_array_equal(found, value)


@pytest.mark.slow
def test_a_model_is_trained_on_from_given_weights(
    debug_config: Config, debug_manifest: Manifest, given: Path, tmp_path: Path
):
    # With a tiny learning rate, exported weights are close to the given ones.
    train(
        debug_config,
        tmp_path / "run",
        f"train.weights={given}",
        "optimizer.learning_rate=1e-6",
    )
    out = tmp_path / "out.safetensors"
    arguments = ["--workdir", str(tmp_path / "run"), "--out", str(out)]
    export_command.main(arguments)
    with pytest.raises(InputError, match="already exists; add --overwrite to replace"):
        export_command.main([*arguments, "--names", "comfyui"])
    export_command.main([*arguments, "--names", "comfyui", "--overwrite"])
    assert "model.diffusion_model.blocks.0.self_attn.q.weight" in load_file(out)
    again = tmp_path / "again"
    weights.save(weights.load(out, debug_config.model), again)
    before, after = tensors(given), tensors(again)
    for name in before:
        difference = np.abs(after[name] - before[name]).max()
        assert 0 < difference < 1e-4, name


def test_weights_of_another_model_are_told_before_anything_is_compiled(
    debug_config: Config, debug_manifest: Manifest, given: Path, tmp_path: Path
):
    message = r"(?s)train\.weights: .* misshapen: .* \(expected \[48"
    with pytest.raises(InputError, match=message):
        train(
            debug_config,
            tmp_path / "run",
            f"train.weights={given}",
            "model.mlp_width=48",
        )
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--workdir", "nowhere"], "nowhere"),
        (["--out", "no/such/place"], "no/such/place: expected to be in a directory"),
        (
            ["--out", "."],
            r"--out \.: already exists; add --overwrite",
        ),
    ],
)
def test_bad_input_is_one_line(
    debug_config: Config, tmp_path: Path, args: list[str], message: str
):
    WorkDir(tmp_path).begin(debug_config)
    with pytest.raises(InputError, match=message):
        export_command.main(["--workdir", str(tmp_path), *args])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("model.lora_rank=2", "lora_rank=2: expected weights to adapt; set train.we"),
        ("model.param_dtype=bfloat16", "param_dtype=bfloat16: expected float32 to"),
    ],
)
def test_what_would_learn_nothing_is_refused(
    debug_config: Config, assignment: str, message: str
):
    config = config_lib.override(debug_config, assignment)
    with pytest.raises(InputError, match=message):
        check_start(config, "noise")


def test_a_run_without_a_checkpoint_is_told(debug_config: Config, tmp_path: Path):
    WorkDir(tmp_path).begin(debug_config)
    with pytest.raises(InputError, match="expected a checkpoint, found none; train"):
        export_command.main(["--workdir", str(tmp_path)])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "wan2.1-i2v-14b",
            r"model.condition_channels=20: expected 0 to train, bec",
        ),
        ("hunyuan-video-13b", r"model.guidance=True: expected False to train"),
    ],
)
def test_a_model_that_needs_more_than_text_is_refused(
    debug_config: Config, model: str, message: str
):
    config = dataclasses.replace(debug_config, model=preset(model))
    with pytest.raises(InputError, match=message):
        check_start(config, "noise")


@pytest.mark.slow
def test_an_mmdit_trains_and_is_exported(
    debug_config: Config, debug_manifest: Manifest, tmp_path: Path
):
    config = tmp_path / "mmdit.py"
    config.write_text(
        "import dataclasses\n"
        "from pathlib import Path\n"
        "from jaxload.config import load\n"
        "from jaxload.models import preset\n"
        "def get_config():\n"
        f"    debug = load(Path({str(DEBUG)!r}))\n"
        "    return dataclasses.replace(debug, model=preset('mmdit-tiny'))\n"
    )
    sets = [f"data.path={debug_config.data.path}", "train.num_steps=3"]
    sets = [word for field in sets for word in ("--set", field)]
    workdir = tmp_path / "run"
    train_command.main(["--config", str(config), "--workdir", str(workdir), *sets])
    assert [row.step for row in read_events(WorkDir(workdir).metrics, STEP)] == [
        1,
        2,
        3,
    ]
    export_command.main(["--workdir", str(workdir)])
    exported = weights.load(workdir / "weights").config
    # All fields but the dtypes, which files do not hold.
    expected = dataclasses.replace(preset("mmdit-tiny"), compute_dtype="bfloat16")
    assert exported == expected
