"""Tests of `python -m jaxload.sample`."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image

from jaxload import export as export_command
from jaxload import sample as sample_command
from jaxload import train as train_command
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.runs.workdir import WorkDir
from jaxload.sample import file_name
from jaxload.sampling.config import SampleConfig
from jaxload.training.events import STEP, read_events
from tests.runs.stuck_commands import STUCK, assert_one_line, started, wait_for
from tests.training.damage import cut


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Trains the debug config on two replicas, with two micro-batches per step."""
    base = tmp_path_factory.mktemp("run")
    code = train_command.main(
        [
            *("--config", str(root / "configs" / "debug.py")),
            *("--workdir", str(base / "run")),
            *("--set", f"data.path={base / 'data'}"),
            *("--set", "train.num_steps=4", "--set", "train.accumulate=2"),
        ]
    )
    assert code == 0
    return base / "run"


@pytest.mark.slow
def test_two_replicas_and_two_micro_batches_a_step(workdir: Path):
    plan = json.loads((workdir / "plan.json").read_text())
    assert plan["num_replicas"] == 2
    programs = [bucket["program"] for bucket in plan["buckets"]]
    batches = {program["form"]: program["batch"] for program in programs}
    events = read_events(workdir / "metrics.jsonl", STEP)
    assert len(events) == 4
    for event in events:
        first, second = event.values["bucket"].split("+")
        assert event.values["batch"] == 2 * (batches[first] + batches[second])


@pytest.mark.slow
def test_draws_another_caption(workdir: Path, tmp_path: Path):
    out = tmp_path / "other.gif"
    arguments = ["--workdir", str(workdir), "--out", str(out)]
    assert sample_command.main([*arguments, "--set", "sample.caption=x"]) == 0
    with Image.open(out) as drawn:
        assert drawn.size == (128, 128)
    assert out.read_bytes() != (workdir / "sample.gif").read_bytes()


@pytest.mark.slow
def test_the_same_sample_as_at_the_end_of_training(workdir: Path, tmp_path: Path):
    out = tmp_path / "same.gif"
    assert sample_command.main(["--workdir", str(workdir), "--out", str(out)]) == 0
    assert out.read_bytes() == (workdir / "sample.gif").read_bytes()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    copy = shutil.copytree(workdir, tmp_path / "run")
    arguments = ["--workdir", str(copy)]
    damaged = [copy / "checkpoints" / step / "state" / "_METADATA" for step in "43"]
    cut(damaged[0])
    assert export_command.main(arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"^{damaged[0]}: expected .*; trying the .* 3$", printed, re.M)
    assert printed.endswith("weights: step 3\n")
    cut(damaged[1])
    for main in (sample_command.main, export_command.main):
        with pytest.raises(InputError, match=rf"{damaged[1]}: expected.*restore it"):
            main(arguments)


@pytest.mark.slow
def test_an_interrupted_compilation_ends_the_command(workdir: Path):
    arguments = ("--workdir", str(workdir), "--set", "sample.num_steps=3")
    with started(STUCK, "jaxload.sample", *arguments) as process:
        wait_for(process, "compiling for ever")
        process.send_signal(signal.SIGINT)
        assert_one_line(process, "jaxload.sample")


def test_a_directory_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"found no config\.json"):
        sample_command.main(["--workdir", str(tmp_path)])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "model.width=64"], "expected a field of the section sample"),
        (
            ["--out", "/no/such/place/a.gif"],
            r"/no/such/place/a\.gif: cannot be written",
        ),
        (["--out", "/proc/a.gif"], r"/proc/a\.gif: cannot be written"),
        (["--out", "a.txt"], r"expected a file that ends in \.gif"),
    ],
)
def test_refuses_what_cannot_be_drawn(
    tmp_path: Path, debug_config: Config, args, message
):
    WorkDir(tmp_path).begin(debug_config)
    with pytest.raises(InputError, match=message):
        sample_command.main(["--workdir", str(tmp_path), *args])


@pytest.mark.parametrize(
    ("caption", "name"),
    [
        ("A red circle, moving", "a-red-circle-moving-7.gif"),
        ("../../etc/passwd\0; rm -rf $HOME `x`", "etc-passwd-rm-rf-home-x-7.gif"),
        ("", "sample-7.gif"),
        ("... / \\ :", "sample-7.gif"),
        (99 * "word ", "-".join(20 * ["word"]) + "-7.gif"),
        (300 * "x", "sample-7.gif"),
    ],
)
def test_files_are_named_by_the_words_of_a_caption(caption: str, name: str):
    assert file_name(SampleConfig(caption=caption, seed=7)) == name


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, debug_config: Config):
    WorkDir(tmp_path).begin(debug_config)
    with pytest.raises(InputError, match="expected a checkpoint, found none"):
        sample_command.main(["--workdir", str(tmp_path)])
