"""Tests of `python -m jaxload.simulate`."""

import collections
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload import simulate as simulate_command
from jaxload.errors import InputError

WORKLOADS = sorted(
    (Path(__file__).parents[1] / "benchmarks" / "workloads").glob("*.csv")
)
HEADER = "id,num_frames,height,width,fps\n"

# Independent count for Wan 2.1 14B: forward FLOPs of a sample of S tokens.
WIDTH, DEPTH, MLP, TEXT = 5120, 40, 13_824, 512


def flops(tokens: int) -> float:
    block = tokens * (12 * WIDTH**2 + 4 * WIDTH * MLP + 4 * TEXT * WIDTH)
    return DEPTH * (block + 4 * WIDTH * tokens**2 + 4 * TEXT * WIDTH**2)


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """Writes a manifest of images, short clips and long videos."""
    rng = np.random.default_rng(0)
    sizes = [(480, 832), (832, 480), (720, 1280), (512, 512)]
    rows = []
    for i in range(400):
        height, width = sizes[rng.integers(len(sizes))]
        frames = int(rng.choice([1, 1, 20, 60, 170, 400]))
        rows.append(f"s{i},{frames},{height},{width},{0 if frames == 1 else 24}")
    path = tmp_path / "w.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return path


def run(*arguments: object) -> int:
    return simulate_command.main([str(argument) for argument in arguments])


def test_prints_a_table_and_writes_figures(workload: Path, tmp_path: Path, capsys):
    out = tmp_path / "out.json"
    assert (
        run("--workload", workload, "--replicas", 4, "--steps", 20, "--out", out) == 0
    )
    printed = capsys.readouterr().out
    assert "max / mean - 1" in printed
    assert "mixing / random draw" in printed
    policies = json.loads(out.read_text())["policies"]
    assert set(policies) == {"equal-token", "dual", "knapformer", "lockstep", "mixed"}
    assert policies["lockstep"]["idle_share"] == 0.0
    assert policies["mixed"]["idle_share"] < policies["equal-token"]["idle_share"]
    with Image.open(out.with_suffix(".png")) as image:
        assert image.width > 600


def test_standard_output_has_only_json(workload: Path, capsys):
    arguments = ("--replicas", 2, "--steps", 3, "--policies", "equal-token", "--json")
    assert run("--workload", workload, *arguments) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content["policies"]) == ["equal-token"]


def rows_of(workload: Path) -> dict[str, list[str]]:
    lines = workload.read_text().splitlines()[1:]
    return {line.split(",")[0]: line.split(",")[1:] for line in lines}


@pytest.mark.parametrize("policy", ["mixed", "lockstep"])
def test_the_schedule_can_be_checked_by_another_program(
    workload: Path, tmp_path: Path, policy
):
    out, figures = tmp_path / "schedule.jsonl", tmp_path / "figures.json"
    arguments = ("--replicas", 4, "--accumulate", 2, "--steps", 6, "--out", figures)
    arguments = (*arguments, "--policies", policy, "--schedule-out", out)
    assert run("--workload", workload, *arguments) == 0
    rows = rows_of(workload)
    cost = np.zeros((6, 4))
    seen = collections.Counter()
    for line in out.read_text().splitlines():
        entry = json.loads(line)
        for micro in entry["micro"]:
            frames, height, width = (micro[k] for k in ("frames", "height", "width"))
            assert (frames % 4, height % 16, width % 16) == (1, 0, 0)
            assert micro["tokens"] == (frames // 4 + 1) * height * width // 256
            assert len(micro["ids"]) == len(micro["starts"]) == micro["batch"]
            cost[entry["step"], entry["replica"]] += micro["batch"] * flops(
                micro["tokens"]
            )
            for name, start in zip(micro["ids"], micro["starts"], strict=True):
                seen[name, start] += 1
                num_frames, row_height, row_width, fps = map(float, rows[name])
                if num_frames > 1:
                    num_frames = (num_frames - 1) * 16 // fps + 1
                assert start + frames <= num_frames
                assert max(height / row_height, width / row_width) <= 1.2
    assert max(seen.values()) == 1
    idle = 1 - cost.mean(axis=1).sum() / cost.max(axis=1).sum()
    said = json.loads(figures.read_text())["policies"][policy]["idle_share"]
    assert idle == pytest.approx(said, abs=2e-3)  # The command also counts embeddings.


@pytest.mark.slow
@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_limits_of_the_documentation_hold(path: Path, tmp_path: Path):
    def figures(*arguments: object) -> dict:
        out = tmp_path / "figures.json"
        assert run("--workload", path, *arguments, "--out", out) == 0
        return json.loads(out.read_text())

    content = figures("--replicas", 16, "--accumulate", 4)
    assert len(content["catalogue"]["shapes"]) <= 32
    assert content["catalogue"]["kept"] >= 0.95
    assert content["policies"]["lockstep"]["idle_share"] == 0.0
    assert content["policies"]["mixed"]["idle_share"] <= 0.01
    assert content["policies"]["mixed"]["mixing"] >= 0.8
    assert content["policies"]["mixed"]["max_memory_share"] <= 1.0
    mixed = ("--policies", "mixed")
    content = figures("--replicas", 16, "--accumulate", 1, *mixed)
    assert content["policies"]["mixed"]["idle_share"] <= 0.03
    mixed = (*mixed, "--steps", 20)
    content = figures("--replicas", 1024, "--accumulate", 4, *mixed)
    assert content["policies"]["mixed"]["idle_share"] <= 0.02


@pytest.mark.parametrize("accumulate", [1, 4])
def test_two_budgets_halve_the_idle_share_of_few_long_shapes(
    tmp_path: Path, root: Path, accumulate
):
    out = tmp_path / "figures.json"
    path = root / "benchmarks" / "workloads" / "few_long.csv"
    policies = ("--policies", "equal-token", "dual")
    run("--workload", path, "--accumulate", accumulate, *policies, "--out", out)
    found = json.loads(out.read_text())["policies"]
    assert found["dual"]["idle_share"] <= 0.5 * found["equal-token"]["idle_share"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replicas", 0), r"--replicas 0: expected 1 or more"),
        (("--accumulate", 0), r"--accumulate 0: expected 1 or more"),
        (("--steps", 0), r"--steps 0: expected 1 or more"),
        (("--memory-headroom", 0.5), r"--memory-headroom 0.5: expected 1.0 or more"),
        (("--policies", "best"), r"--policies best: expected some of equal-token"),
        (("--replicas", 100_000), r"samples for 100000 replicas: expected at least"),
        (("--costs", "none.json"), r"calibration none.json: cannot be read"),
        (("--seed", -1), r"--seed -1: expected a seed from 0"),
        (("--max-buckets", 0), r"--max-buckets 0: expected 1 or more"),
        (("--flops-per-second", "inf"), r"--flops-per-second inf: expected more"),
    ],
)
def test_bad_arguments_are_one_line(workload: Path, arguments, message):
    with pytest.raises(InputError, match=message) as error:
        run("--workload", workload, *arguments)
    assert "\n" not in str(error.value)


def test_bad_costs_are_refused_before_the_workload_is_read(tmp_path: Path):
    with pytest.raises(InputError, match=r"calibration none.json: cannot be read"):
        run("--workload", tmp_path / "missing.csv", "--costs", "none.json")


def test_each_policy_and_the_search_of_a_deal_have_a_line(workload: Path, capsys):
    arguments = ("--replicas", 2, "--steps", 3, "--policies", "knapformer", "mixed")
    assert run("--workload", workload, *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    done = [line.split(" in ")[0] for line in lines if line.endswith(" s")]
    assert "simulating knapformer: 3/3" in done
    assert re.fullmatch(r"searching for a deal: \d+ attempts", done[-2])
    assert done[-1] == "simulating mixed: 3/3"


def test_a_schedule_needs_a_policy_that_has_one(workload: Path, tmp_path: Path):
    arguments = ("--policies", "dual", "--schedule-out", tmp_path / "s.jsonl")
    with pytest.raises(InputError, match=r"expected one of mixed, lockstep among"):
        run("--workload", workload, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (HEADER, "no rows|empty"),
        ("id,num_frames,height,fps\na,1,480,0\n", "width"),
        (HEADER + "a,1,480,832,0\na,1,480,832,0\n", "'a'"),
        (HEADER + "a,1,480,832,0\nb,-5,480,832,16\n", "1 of 2 rows are invalid"),
    ],
)
def test_bad_workloads_are_one_line(tmp_path: Path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        run("--workload", path, "--replicas", 1)
    assert "\n" not in str(error.value)


def test_a_histogram_has_no_schedule_to_write(tmp_path: Path):
    path = tmp_path / "h.csv"
    path.write_text("num_frames,height,width,count\n81,480,832,500\n")
    with pytest.raises(InputError, match="a histogram has no ids"):
        run("--workload", path, "--schedule-out", tmp_path / "s.jsonl", "--steps", 1)


def test_lockstep_is_left_out_if_no_shape_has_enough_samples(workload: Path, capsys):
    arguments = ("--replicas", 390, "--steps", 2, "--policies", "dual", "lockstep")
    assert run("--workload", workload, *arguments) == 0
    printed = capsys.readouterr().out
    assert "lockstep is left out: no shape has 390 samples" in printed
