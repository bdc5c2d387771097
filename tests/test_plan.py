"""Tests of `python -m jaxload.plan`, also followed by prepare and train."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from jaxload import plan as plan_command
from jaxload import prepare as prepare_command
from jaxload import train as train_command
from jaxload.balance.form import Length
from jaxload.balance.regression import Timing, regress_costs
from jaxload.data.manifest import read_manifest
from jaxload.errors import InputError
from jaxload.planning import step_times
from jaxload.planning.plan import Plan, from_dict
from jaxload.runs.planned import read_plan
from jaxload.shapes.shape import Shape
from jaxload.training.events import STEP, read_events
from tests.media.media_files import moving_pattern, write_video


def test_plan_prints_and_writes(tmp_path: Path, root: Path, capsys):
    arguments = ["--config", str(root / "configs" / "debug.py"), "--replicas", "3"]
    arguments += ["--set", f"data.path={tmp_path / 'data'}"]
    assert plan_command.main([*arguments, "--out", str(tmp_path / "plan.json")]) == 0
    assert "Catalogue for 3 replica(s)" in capsys.readouterr().out
    assert json.loads((tmp_path / "plan.json").read_text())["num_replicas"] == 3
    with Image.open(tmp_path / "plan.png") as image:
        assert image.width > 600


@pytest.mark.parametrize("replicas", ["0", "-1"])
def test_refuses_less_than_one_replica(tmp_path: Path, root: Path, replicas):
    arguments = ["--config", str(root / "configs" / "debug.py"), "--replicas", replicas]
    arguments += ["--set", f"data.path={tmp_path / 'data'}"]
    with pytest.raises(
        InputError, match=f"{replicas} replicas: expected 1 to 1,048,576"
    ):
        plan_command.main(arguments)


@pytest.fixture
def manifest_file(tmp_path: Path) -> Path:
    """Writes a manifest of clips of three lengths, images, and one invalid row."""
    frames = [1, 17, 33, 81]
    rows = [f"s{i},{frames[i % 4]},480,832,{16 if i % 4 else 0}" for i in range(64)]
    path = tmp_path / "manifest.csv"
    path.write_text(
        "id,num_frames,height,width,fps\n" + "\n".join(rows) + "\nx,81,480,832,90000\n"
    )
    return path


def plan_for(root: Path, manifest: Path, *arguments: str) -> dict:
    out = manifest.with_name("plan.json")
    tokens = "balance.max_tokens=70000"
    fixed = ["--config", str(root / "configs" / "debug.py"), "--set", tokens]
    fixed += ["--manifest", str(manifest), "--out", str(out)]
    assert plan_command.main([*fixed, *arguments]) == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize("policy", ["lockstep", "mixed"])
def test_plans_for_a_manifest_of_media(root: Path, manifest_file: Path, policy, capsys):
    policies = ("--set", f"balance.policy={policy}", "--replicas", "4")
    content = plan_for(root, manifest_file, *policies)
    printed = capsys.readouterr().out
    assert "left out 1: bad metadata, such as row 64 (id 'x')" in printed
    assert "predicted idle share: equal-token" in printed
    # Each long phase shows its progress, and how long it took.
    for line in (
        r"choosing sizes: \d+ attempts",
        r"searching for a deal: \d+ attempts",
        r"comparing policies: 500/500",
    ):
        assert re.search(rf"^{line} in [\d.]+ s$", printed, re.M)
    plan = from_dict(content, name="plan")
    frames = (1, 17, 33, 81)
    tokens = {Shape.of_pixels((f, 480, 832), plan.geometry).tokens for f in frames}
    assert {bucket.form for bucket in plan.buckets} == set(map(Length, tokens))
    assert plan.sizes == ((60, 104),)
    assert all(b.batch * b.tokens <= 70_000 for b in plan.buckets)
    assert plan.kept_content == pytest.approx(1.0)
    assert plan.idle_shares["lockstep"] == 0.0
    assert bool(plan.patterns or plan.rest) == (policy == "mixed")


def write_calibration(
    path: Path,
    timings: Sequence[Timing],
    model: Mapping[str, Any],
    devices_per_group: int = 1,
) -> None:
    calibration = regress_costs(
        timings,
        source="measured once",
        model=model,
        devices_per_group=devices_per_group,
    )
    path.write_text(json.dumps(calibration.to_dict()))


def test_costs_of_another_model_are_refused(root: Path, manifest_file: Path):
    timings = [
        Timing(batch=b, tokens=s, seconds=0.01 + 1e-6 * b * s + 1e-11 * b * s * s)
        for s in (1_560, 7_800, 14_040)
        for b in (1, 2, 4)
    ]
    calibration = manifest_file.with_name("other.json")
    model = plan_for(root, manifest_file)["model"]
    width = model["width"]
    write_calibration(calibration, timings, model | {"width": 2 * width, "depth": 99})
    message = rf"{2 * width} there and {width} here and 1 more; measure this one"
    with pytest.raises(InputError, match=message):
        plan_for(root, manifest_file, "--set", f"balance.costs={calibration}")


def test_costs_of_a_calibration_are_used_and_named(root: Path, manifest_file: Path):
    timings = [
        Timing(batch=b, tokens=s, seconds=0.01 + 1e-6 * b * s + 1e-11 * b * s * s)
        for s in (1_560, 7_800, 14_040, 32_760)
        for b in (1, 2, 4)
    ]
    calibration = manifest_file.with_name("calibration.json")
    write_calibration(calibration, timings, plan_for(root, manifest_file)["model"])
    content = plan_for(root, manifest_file, "--set", f"balance.costs={calibration}")
    assert content["sources"]["cost"] == "measured once"
    assert content["cost_model"]["unit"] == "s"
    longest = content["buckets"][-1]
    batch = longest["program"]["batch"]
    seconds = 0.01 + batch * (1e-6 * 32_760 + 1e-11 * 32_760**2)
    assert longest["cost"] == pytest.approx(seconds, rel=1e-6)


def test_replicas_are_the_groups_of_devices_by_default(root: Path, manifest_file: Path):
    assert plan_for(root, manifest_file)["num_replicas"] == 2
    sharded = plan_for(root, manifest_file, "--set", "mesh.fsdp=2")
    assert sharded["num_replicas"] == 1
    assert sharded["mesh"] == {"replica": 1, "fsdp": 2, "tensor": 1}
    assert all(bucket["program"]["batch"] % 2 == 0 for bucket in sharded["buckets"])
    elsewhere = plan_for(root, manifest_file, "--devices", "8", "--set", "mesh.fsdp=2")
    assert elsewhere["num_replicas"] == 4


@pytest.mark.slow
def test_bytes_are_compiled_and_confirmed(tmp_path: Path, root: Path):
    out = tmp_path / "plan.json"
    arguments = ["--config", str(root / "configs" / "debug.py"), "--out", str(out)]
    arguments += ["--set", f"data.path={tmp_path / 'data'}", "--set", "mesh.fsdp=2"]
    arguments += ["--set", "balance.max_bytes=1000000"]
    assert plan_command.main(arguments) == 0
    content = json.loads(out.read_text())
    memory = content["sources"]["memory"]
    assert memory.startswith("1,000,000 bytes of each device and 64 tokens (balance.m")
    assert "compiled for cpu" in memory
    by_tokens = {"len4": 2 * 16, "len8": 2 * 8, "len18": 2 * 3}
    for bucket in content["buckets"]:
        assert 500_000 < bucket["num_bytes"] <= 1_000_000
        program = bucket["program"]
        assert program["layout"] == {"batch": 2, "ring": 1, "heads": 1}
        assert program["batch"] <= by_tokens[program["form"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--manifest", "none.csv"], r"none\.csv"),
        (
            ["--set", "balance.costs=none.json"],
            r"calibration none\.json: cannot be read",
        ),
        (["--out", "no/such/plan.json"], r"no/such/plan.json: cannot be written"),
        (["--set", "balance.max_tokens=1"], r"balance.max_tokens=1: not one sample of"),
        (
            ["--replicas", "1000"],
            r"48 samples: expected 1000 or more, a batch for each",
        ),
        (
            ["--set", "mesh.fsdp=3"],
            r"mesh.fsdp=3, .*2 devices cannot be divided so; the nearest that works is "
            "mesh.replica=1 mesh.fsdp=2 mesh.tensor=1$",
        ),
        (
            ["--set", "mesh.replica=3", "--devices", "8", "--set", "mesh.tensor=2"],
            r"mesh.replica=3, .*8 devices cannot be divided so; the nearest that works "
            "is mesh.replica=4 mesh.fsdp=1 mesh.tensor=2$",
        ),
        (["--devices", "0"], r"--devices 0: expected 1 or more$"),
        (["--set", "mesh.fsdp=0"], r"mesh.fsdp=0: expected 1 or more$"),
        (["--set", "model=wan-tinny"], r"wan-tinny.*did you mean 'wan-tiny'"),
        (["--target", "h100"], r"target 'h100': .* did you mean 'h100-80gb'\?$"),
        (
            ["--set", "balance.max_tokens=0"],
            r"balance.max_tokens=0: cpu does not tell how much memory it has; ",
        ),
        (
            ["--set", "balance.max_bytes=9000000", "--devices", "8"],
            r"balance.max_bytes=9000000: .*not here; name their type with --target",
        ),
    ],
)
def test_bad_arguments_are_one_line(tmp_path: Path, root: Path, arguments, message):
    fixed = ["--config", str(root / "configs" / "debug.py")]
    fixed += ["--set", f"data.path={tmp_path / 'data'}"]
    with pytest.raises(InputError, match=message) as error:
        plan_command.main([*fixed, *arguments])
    assert "\n" not in str(error.value)


# --- From a list of samples through prepare to train ---

# All runs below share their programs with other tests, to save compilations.
CONFIG = """
import dataclasses
from pathlib import Path

from jaxload.balance.config import BalanceConfig
from jaxload.config import load
from jaxload.parallel.config import MeshConfig


def get_config():
    debug = load(Path({debug!r}))
    return dataclasses.replace(
        debug,
        data=dataclasses.replace(debug.data, path={data!r}),
        synthetic=None,
        mesh=MeshConfig(fsdp=2),
        balance=BalanceConfig(max_tokens=8, rule="equal-token"),
        train=dataclasses.replace(debug.train, num_steps=2, log_every=1),
    )
"""
NUM_IMAGES, NUM_CLIPS = 9, 5


class Project:
    """A folder of media, a manifest of it, and a config that trains on it."""

    def __init__(self, root: Path, directory: Path):
        self.directory = directory
        self.media, self.data = directory / "media", directory / "dataset"
        self.list, self.config = directory / "list.csv", directory / "config.py"
        debug = str(root / "configs" / "debug.py")
        self.config.write_text(CONFIG.format(debug=debug, data=str(self.data)))
        self.media.mkdir()
        rows = ["id,num_frames,height,width,fps"]
        for i in range(NUM_IMAGES):
            name = f"image{i}.png"
            Image.fromarray(moving_pattern(1, 32, 32, seed=i)[0]).save(
                self.media / name
            )
            rows.append(f"{name},1,32,32,0")
        for i in range(NUM_CLIPS):
            name = f"clip{i}.mp4"
            write_video(self.media / name, moving_pattern(5, 32, 32, seed=i), fps=16)
            rows.append(f"{name},5,32,32,16")
        self.list.write_text("\n".join(rows) + "\n")

    def plan(self, name: str, *arguments: str) -> Path:
        """Plans for the manifest; returns the path of the plan."""
        out = self.directory / f"{name}.json"
        options = ["--manifest", str(self.list), "--out", str(out), *arguments]
        assert plan_command.main(["--config", str(self.config), *options]) == 0
        return out

    def prepare(self, plan: Path) -> None:
        """Prepares the media in the shapes of a plan."""
        options = ["--media", str(self.media), "--plan", str(plan), "--workers", "0"]
        assert prepare_command.main(["--config", str(self.config), *options]) == 0

    def train(self, name: str, *arguments: str) -> Plan:
        """Trains two steps; returns the plan in the work directory."""
        workdir = self.directory / name
        options = ["--workdir", str(workdir), *arguments]
        assert train_command.main(["--config", str(self.config), *options]) == 0
        steps = [event.step for event in read_events(workdir / "metrics.jsonl", STEP)]
        assert steps == [1, 2]
        return read_plan(workdir / "plan.json")


@pytest.fixture(scope="module")
def project(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Builds a project and prepares its dataset in the shapes of a plan."""
    project = Project(root, tmp_path_factory.mktemp("project"))
    project.prepare(project.plan("first"))
    return project


def test_a_dataset_prepared_from_a_list_has_the_samples_of_its_plan(project: Project):
    plan = read_plan(project.plan("again"))
    assert [str(bucket) for bucket in plan.buckets] == [
        "len4@4 on 2x1x1",
        "len8@2 on 2x1x1",
    ]
    manifest = read_manifest(project.data)
    found = {shape: len(rows) for shape, rows in manifest.rows_by_shape.items()}
    assert found == {Shape(1, 4, 4): NUM_IMAGES, Shape(2, 4, 4): NUM_CLIPS}
    assert [b.num_samples for b in plan.buckets] == [NUM_IMAGES, NUM_CLIPS]


@pytest.mark.slow
def test_a_plan_of_a_list_runs_on_the_dataset_prepared_from_it(project: Project):
    path = project.plan("analytic")
    planned, ran = read_plan(path), project.train("analytic-run", "--plan", str(path))
    assert ran.buckets == planned.buckets
    assert ran.left_out == ()
    assert ran.dataset == read_manifest(project.data).digest() != planned.dataset


@pytest.mark.slow
def test_a_mixed_plan_with_calibrated_costs_runs_on_it_too(project: Project):
    timings = [
        Timing(batch=b, tokens=s, seconds=0.01 + 1e-4 * b * s + 1e-7 * b * s * s)
        for s in (4, 8, 16)
        for b in (1, 2, 4)
    ]
    calibration = project.directory / "calibration.json"
    analytic = read_plan(project.plan("analytic"))
    write_calibration(
        calibration, timings, analytic.model, analytic.mesh.devices_per_group
    )
    assignments = ["balance.policy=mixed", f"balance.costs={calibration}"]
    path = project.plan("mixed", *(x for a in assignments for x in ("--set", a)))
    planned, ran = read_plan(path), project.train("mixed-run", "--plan", str(path))
    assert ran.sources["cost"] == "measured once"
    assert (ran.cost_model, ran.cost_model.unit) == (planned.cost_model, "s")
    assert (ran.buckets, ran.patterns) == (planned.buckets, planned.patterns)
    assert ran.config.policy == "mixed"


@pytest.mark.slow
def test_costs_are_measured_before_training(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys
):
    # The programs are shared with other tests. Their times are fake, because such short
    # times may not grow with tokens on a busy machine.
    grid = [(Shape(*s), n) for s in ((1, 4, 4), (3, 4, 6)) for n in (1, 2)]
    monkeypatch.setattr(
        step_times, "default_grid", lambda *_: [*grid, (Shape(2, 4, 4), 1)]
    )
    monkeypatch.setattr(step_times, "_COMPILE_SHARE", float("inf"))
    run = step_times._Runner.run

    def fake_time(runner: step_times._Runner, step: step_times._Step) -> float:
        assert run(runner, step) > 0
        return 0.01 + 1e-4 * step.program.tokens_per_device

    monkeypatch.setattr(step_times._Runner, "run", fake_time)
    assignments = ["balance.costs=measure", "balance.measure_seconds=0.01"]
    ran = project.train("measured", *(x for a in assignments for x in ("--set", a)))
    source = "regressed from 5 micro-steps on 2 x cpu"
    assert (ran.sources["cost"], ran.cost_model.unit) == (source, "s")
    costs = [bucket.cost for bucket in ran.buckets]
    assert costs == pytest.approx([0.01 + 1e-4 * 8] * 2, rel=1e-3)
    printed = capsys.readouterr().out
    assert f"cost: {source}" in printed
