"""Tests of `jaxload.train --dry-run` and of plans for absent GPUs."""

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxload import plan as plan_command
from jaxload import targets
from jaxload import train as train_command
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.planning.plan import Plan
from jaxload.runs.planned import read_plan
from jaxload.targets.child_process import environment
from jaxload.training.lowering import Lowering

# Two programs, which other tests compile too, for one group of two devices.
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
        data=dataclasses.replace(
            debug.data, path="nowhere", random_shapes=("1x4x4", "2x4x4")
        ),
        synthetic=None,
        mesh=MeshConfig(fsdp=2),
        balance=BalanceConfig(max_tokens=8, rule="equal-token"),
    )
"""
PROGRAMS = ["len4@4 on 2x1x1", "len8@2 on 2x1x1"]


@pytest.fixture(scope="module")
def config_file(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.py"
    path.write_text(CONFIG.format(debug=str(root / "configs" / "debug.py")))
    return path


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runs each test in a directory that a dry run has to leave empty."""
    directory = tmp_path / "empty"
    directory.mkdir()
    monkeypatch.chdir(directory)
    yield directory
    assert list(directory.iterdir()) == []


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that creates a state or runs a compiled program."""

    def init(*_: object) -> None:
        pytest.fail("the program that makes the state was lowered")

    def call(*_: object, **__: object) -> None:
        pytest.fail("a compiled program was run")

    monkeypatch.setattr(Lowering, "init", init)
    monkeypatch.setattr(jax.stages.Compiled, "__call__", call)


def dry_run(config_file: Path, *arguments: str) -> None:
    options = ["--config", str(config_file), "--dry-run", *arguments]
    assert train_command.main(options) == 0


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


# --- On the devices of this machine ---


@pytest.mark.slow
def test_prints_bytes_and_the_first_batch_and_allocates_no_model(
    config_file: Path, no_model: None, capsys: pytest.CaptureFixture[str]
):
    gc.collect()
    before = len(jax.live_arrays())
    dry_run(config_file)
    gc.collect()
    assert len(jax.live_arrays()) <= before
    lines = lines_of(capsys)
    assert "no dataset in nowhere: random latents of 1x4x4, 2x4x4" in lines
    assert "bytes of each device, cpu:" in lines
    for name in (*PROGRAMS, "update", "sample"):
        (row,) = (line for line in lines if line.startswith(f"{name}  "))
        assert row.endswith(" kB")
    (peak,) = (line for line in lines if line.startswith("peak "))
    assert "fits" not in peak  # CPUs do not report their memory.
    first = lines[-1]
    assert first.startswith(f"first batch ({PROGRAMS[0]}): ") or first.startswith(
        f"first batch ({PROGRAMS[1]}): "
    )
    batch, tokens = (4, 4) if PROGRAMS[0] in first else (2, 8)
    assert first.endswith(
        f"tokens bfloat16[{batch}, {tokens}, 64], grid int32[{batch}, 3], text "
        f"bfloat16[{batch}, 12, 16], id int32[{batch}]"
    )


@pytest.mark.slow
def test_a_plan_and_a_dataset_are_those_of_the_run(
    config_file: Path,
    debug_config: Config,
    debug_manifest: Manifest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    plan = tmp_path / "plan.json"
    histogram = tmp_path / "list.csv"
    histogram.write_text("num_frames,height,width,count\n1,32,32,60\n5,32,32,60\n")
    options = ["--config", str(config_file), "--manifest", str(histogram)]
    assert plan_command.main([*options, "--out", str(plan)]) == 0
    assert [str(bucket) for bucket in read_plan(plan).buckets] == PROGRAMS
    capsys.readouterr()
    data = f"data.path={debug_config.data.path}"
    dry_run(config_file, "--plan", str(plan), "--set", data)
    lines = lines_of(capsys)
    assert not any("random latents" in line for line in lines)
    assert any(
        line.startswith("left out 12: longer than any program of the plan")
        for line in lines
    )
    for name in PROGRAMS:
        assert any(line.startswith(f"{name}  ") for line in lines)
    # The first batch is read from the records, which hold bfloat16.
    assert "text bfloat16[" in lines[-1]
    assert len(debug_manifest) == 48


def test_devices_that_cannot_be_compiled_for_are_one_line(config_file: Path):
    message = (
        r"^--devices: expected the devices of this machine \(2 x cpu\), .*; name "
        "another GPU with --target$"
    )
    with pytest.raises(InputError, match=message):
        dry_run(config_file, "--devices", "8")


@pytest.mark.parametrize("option", ["--target=h100-80gb", "--devices=8"])
def test_other_devices_without_a_dry_run_are_refused(config_file: Path, option: str):
    name, _, value = option.partition("=")
    message = f"^{name} {value}: only a dry run can be for devices .*; add --dry-run$"
    with pytest.raises(InputError, match=message):
        train_command.main(["--config", str(config_file), option])


def test_an_unknown_target_is_one_line_with_the_nearest(config_file: Path):
    message = r"^target 'h100-90gb': expected one of .*; did you mean 'h100-80gb'\?$"
    with pytest.raises(InputError, match=message):
        dry_run(config_file, "--target", "h100-90gb")


def test_a_dataset_that_is_nowhere_is_one_line(config_file: Path):
    with pytest.raises(InputError, match="nowhere") as error:
        dry_run(config_file, "--set", "data.random_shapes=")
    assert "\n" not in str(error.value)


# --- For a GPU that this machine lacks ---


@pytest.fixture(scope="module")
def plugin() -> None:
    """Skips without JAX's CUDA plugin, or fails if it is required."""
    try:
        environment()
    except InputError as error:
        if "cuda" in os.environ.get("JAXLOAD_REQUIRE_KERNELS", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cache(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Creates a cache of results that only these tests use."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory))
        yield directory / "jaxload" / "targets"


def plan_for_h100(config_file: Path, out: Path) -> Plan:
    """Plans images of one shape, so that few programs are compiled."""
    histogram = out.with_suffix(".csv")
    histogram.write_text("num_frames,height,width,count\n1,32,32,60\n")
    options = ["--config", str(config_file), "--manifest", str(histogram)]
    options += ["--target", "h100-80gb", "--devices", "2", "--out", str(out)]
    assert plan_command.main(options) == 0
    return read_plan(out)


@pytest.fixture(scope="module")
def h100_plan(
    cache: Path, config_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Plan:
    """Makes the first plan, whose programs are compiled."""
    return plan_for_h100(config_file, tmp_path_factory.mktemp("h100") / "plan.json")


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that compiles a program for a target."""

    def run_module(*_: object) -> None:
        pytest.fail("a program was compiled again")

    monkeypatch.setattr(targets, "run_module", run_module)


@pytest.mark.gpu
@pytest.mark.slow
def test_a_plan_for_a_target_has_its_bytes(h100_plan: Plan, cache: Path):
    assert h100_plan.target == "h100-80gb"
    assert h100_plan.num_replicas == 1
    budget = int(0.95 * targets.H100.usable_bytes)
    source = h100_plan.sources["memory"]
    assert source.startswith(f"{budget:,} bytes of each device")
    assert "compiled for h100-80gb" in source
    (bucket,) = h100_plan.buckets
    assert str(bucket) == PROGRAMS[0]
    kept = [json.loads(path.read_text()) for path in cache.iterdir()]
    results = {str(entry["key"]["request"]): entry["result"]["bytes"] for entry in kept}
    # The update, the sampler, and one and two samples on each device.
    assert len(results) == 4
    # The plan also counts queued micro-batches: tokens, grids, texts and ids.
    waiting = 2 * 2 * (4 * 64 * 2 + 3 * 4 + 12 * 16 * 2 + 4)
    kept_bytes = results[str(bucket.program.to_dict())]
    assert kept_bytes + waiting == bucket.num_bytes
    # At least half of 25,000 parameters, with two moments and gradient sums.
    assert 200_000 < results["sample"] < bucket.num_bytes < 20_000_000


@pytest.mark.gpu
@pytest.mark.slow
def test_a_second_plan_compiles_nothing(
    h100_plan: Plan, cache: Path, config_file: Path, tmp_path: Path, no_child: None
):
    before = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert plan_for_h100(config_file, tmp_path / "plan.json") == h100_plan
    after = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert after == before


@pytest.mark.gpu
@pytest.mark.slow
def test_a_dry_run_for_a_target_prints_what_fits(
    h100_plan: Plan,
    config_file: Path,
    no_child: None,
    no_model: None,
    capsys: pytest.CaptureFixture[str],
):
    gc.collect()
    before = len(jax.live_arrays())
    options = ["--target", "h100-80gb", "--devices", "2"]
    dry_run(config_file, *options, "--set", "data.random_shapes=1x4x4")
    gc.collect()
    assert len(jax.live_arrays()) <= before
    lines = lines_of(capsys)
    assert "bytes of each device, h100-80gb:" in lines
    (row,) = (line for line in lines if line.startswith(f"{PROGRAMS[0]}  "))
    assert row.endswith("0%")  # Of a budget of 77 GB.
    (peak,) = (line for line in lines if line.startswith("peak "))
    assert peak.endswith(" of 76.7 GB: fits")
    assert lines[-1] == (
        f"first batch ({PROGRAMS[0]}): tokens bfloat16[4, 4, 64], grid int32[4, 3], "
        "text bfloat16[4, 12, 16], id int32[4]"
    )


@pytest.mark.gpu
@pytest.mark.slow
def test_a_budget_too_small_for_a_target_is_one_line(
    h100_plan: Plan, config_file: Path, no_child: None
):
    options = ["--target", "h100-80gb", "--devices", "2"]
    options += ["--set", "balance.max_bytes=100000"]
    options += ["--set", "data.random_shapes=1x4x4"]
    message = "balance.max_bytes=100000: the program '.*' needs .* of each device; "
    with pytest.raises(InputError, match=message) as error:
        dry_run(config_file, *options)
    assert "\n" not in str(error.value)
