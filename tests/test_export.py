"""Tests of training from given weights, and of `python -m jaxload.export`."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxload import config as config_lib
from jaxload import export as export_command
from jaxload import train as train_command
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.models import preset, weights
from jaxload.training.starting import check_start
from jaxload.training.telemetry import read_metrics
from jaxload.training.workdir import WorkDir
from tests.models.tiny import make, randomized

DEBUG = Path(__file__).parents[1] / "configs" / "debug.py"


@pytest.fixture(scope="module")
def given(debug_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the debug config's model, as someone else trained it."""
    directory = tmp_path_factory.mktemp("given") / "transformer"
    weights.save(randomized(make(debug_config.model), size=0.05), directory)
    return directory


def train(config: Config, workdir: Path, *assignments: str) -> None:
    fields = [f"data.path={config.data.path}", "train.num_steps=3", *assignments]
    sets = [word for field in fields for word in ("--set", field)]
    train_command.main(["--config", str(DEBUG), "--workdir", str(workdir), *sets])


def tensors(path: Path) -> dict[str, np.ndarray]:
    return load_file(path / "diffusion_pytorch_model.safetensors")


@pytest.mark.slow
def test_adapters_are_trained_alone_and_exported_in_what_they_adapt(
    debug_config: Config, debug_manifest: Manifest, given: Path, tmp_path: Path
):
    train(
        debug_config,
        tmp_path / "run",
        f"train.weights={given}",
        "model.lora_rank=2",
        "model.lora_targets=q,mlp_out",
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


@pytest.mark.slow
def test_a_model_is_trained_on_from_given_weights(
    debug_config: Config, debug_manifest: Manifest, given: Path, tmp_path: Path
):
    # A rate so small that what was given is still seen in what comes out.
    train(
        debug_config,
        tmp_path / "run",
        f"train.weights={given}",
        "optimizer.learning_rate=1e-6",
    )
    out = tmp_path / "out.safetensors"
    export_command.main(
        ["--workdir", str(tmp_path / "run"), "--out", str(out), "--names", "comfyui"]
    )
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
    with pytest.raises(InputError, match=r"misshapen: .* \(expected \[48"):
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
        check_start(config, from_weights=False)


def test_a_run_without_a_checkpoint_is_told(debug_config: Config, tmp_path: Path):
    WorkDir(tmp_path).begin(debug_config)
    with pytest.raises(InputError, match="expected a checkpoint, found none; train"):
        export_command.main(["--workdir", str(tmp_path)])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("wan2.1-i2v-14b", r"model.condition_channels=20: expected 0 to train: data"),
        ("hunyuan-video-13b", r"model.guidance=True: expected False to train"),
    ],
)
def test_a_model_that_needs_more_than_text_is_refused(
    debug_config: Config, model: str, message: str
):
    config = dataclasses.replace(debug_config, model=preset(model))
    with pytest.raises(InputError, match=message):
        check_start(config, from_weights=False)


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
    assert [row.step for row in read_metrics(WorkDir(workdir).metrics)] == [0, 1, 2]
    export_command.main(["--workdir", str(workdir)])
    exported = weights.load(workdir / "weights").config
    # All but the types, which files do not tell.
    expected = dataclasses.replace(preset("mmdit-tiny"), compute_dtype="bfloat16")
    assert exported == expected
