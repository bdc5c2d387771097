"""Tests of runs whose dataset is updated after they began."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from jaxload import prepare as prepare_command
from jaxload import train as train_command
from jaxload.data.manifest import read_manifest
from jaxload.errors import InputError
from jaxload.files import read_json
from jaxload.planning.plan import Plan, from_dict
from jaxload.runs.workdir import WorkDir
from jaxload.training.events import STEP, read_events
from tests.media.media_files import moving_pattern

CONFIG = """
import dataclasses

from jaxload.config import Config, load
from jaxload.shapes.config import ShapeRules


def get_config() -> Config:
    debug = load({debug!r})
    return dataclasses.replace(
        debug,
        data=dataclasses.replace(debug.data, path={data!r}),
        synthetic=None,
        shapes=ShapeRules(max_frames=9, max_pixels=32 * 48),
        sample=dataclasses.replace(debug.sample, num_steps=1),
    )
"""


class Project:
    """A media folder, its dataset and runs on it."""

    def __init__(self, path: Path, root: Path):
        self.path, self.media, self.data = path, path / "media", path / "data"
        self.media.mkdir()
        self.config = path / "config.py"
        debug = str(root / "configs" / "debug.py")
        self.config.write_text(CONFIG.format(debug=debug, data=str(self.data)))

    def draw(self, names: list[str]) -> None:
        for i, name in enumerate(names):
            height, width = ((32, 32), (32, 48))[i % 2]
            picture = moving_pattern(1, height, width, seed=sum(name.encode()))[0]
            Image.fromarray(picture).save(self.media / f"{name}.png")

    def prepare(self) -> None:
        options = ["--config", str(self.config), "--media", str(self.media)]
        assert prepare_command.main([*options, "--workers", "0"]) == 0

    def train(self, name: str, num_steps: int, *more: str) -> WorkDir:
        options = ["--config", str(self.config), "--workdir", str(self.path / name)]
        steps = ["--set", f"train.num_steps={num_steps}"]
        assert train_command.main([*options, *steps, *more]) == 0
        return WorkDir(self.path / name)


def losses(workdir: WorkDir) -> list[tuple[int, float, str]]:
    events = read_events(workdir.metrics, STEP)
    return [(e.step, e.values["loss"], e.values["bucket"]) for e in events]


def plan_of(workdir: WorkDir) -> Plan:
    return from_dict(read_json(workdir.plan, remedy=""), name="plan")


@pytest.mark.slow
def test_a_resumed_run_continues_on_the_rows_it_began_with(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture
):
    project = Project(tmp_path, root)
    old = [f"old{i}" for i in range(24)]
    project.draw(old)
    project.prepare()
    first = read_manifest(project.data)
    unbroken = project.train("unbroken", 4)
    resumed = project.train("resumed", 2)

    project.draw([f"new{i}" for i in range(24)])
    for name in old[:5]:
        (project.media / f"{name}.png").unlink()
    project.prepare()
    newest = read_manifest(project.data)
    assert (len(first), len(newest), len(newest.used_rows)) == (24, 48, 43)

    capsys.readouterr()
    project.train("resumed", 4, "--resume")
    line = (
        f"dataset {project.data} was updated after this run began: it continues on its "
        "24 clips; a new run uses the newest"
    )
    assert capsys.readouterr().out.splitlines().count(line) == 1
    assert losses(resumed) == losses(unbroken)
    assert plan_of(resumed).dataset == first.digest()

    new = project.train("new", 2)
    assert "was updated" not in capsys.readouterr().out
    assert plan_of(new).dataset == newest.digest()
    assert sum(b.num_samples for b in plan_of(new).buckets) == 43
    assert losses(new)[0] != losses(unbroken)[0]

    # Shards of before are needed for as long as such a run shall resume.
    shutil.copytree(resumed.path, tmp_path / "later")
    (project.data / first.shards[3].name).unlink()
    message = r"shard-00003.*: the manifest names this shard, but it does not exist; "
    with pytest.raises(InputError, match=message):
        project.train("later", 6, "--resume")
