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
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

WORKLOADS = sorted(
    (Path(__file__).parents[1] / "benchmarks" / "workloads").glob("*.csv")
)
# Samples that version 0.2 left out, which cut clips to the frames of 32 shapes.
LEFT_OUT_BY_SHAPES = {
    "activitynet": 1_666,
    "charades": 0,
    "clipshots": 8_727,
    "coco_val2017": 28,
    "few_long": 37,
    "laion_aesthetics": 578,
    "lsvq_train": 837,
    "mix_dev": 924,
    "ssv2_val": 9,
    "uhd": 162,
}
# Lists of one size, whose few lengths have a program each also by grid.
FEW_SHAPES = {"charades", "ssv2_val"}
HEADER = "id,num_frames,height,width,fps\n"

# Independent count for Wan 2.1 14B: forward FLOPs of a row of S tokens, of which each
# attends to L.
WIDTH, DEPTH, MLP, TEXT = 5120, 40, 13_824, 512


def flops(tokens: int, keys: int) -> float:
    block = tokens * (12 * WIDTH**2 + 4 * WIDTH * MLP + 4 * TEXT * WIDTH)
    return DEPTH * (block + 4 * WIDTH * tokens * keys + 4 * TEXT * WIDTH**2)


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
    names = {"equal-token", "dual", "knapformer", "lockstep", "mixed"}
    assert set(policies) == names | {"equal-token, grid", "dual, grid"}
    assert all(f["lost"] >= f["idle_share"] for f in policies.values())
    assert 0 <= policies["lockstep"]["lost"] < 0.05
    assert policies["mixed"]["idle_share"] < policies["equal-token"]["idle_share"]
    with Image.open(out.with_suffix(".png")) as image:
        assert image.width > 600


def test_standard_output_has_only_json(workload: Path, capsys):
    arguments = ("--replicas", 2, "--steps", 3, "--policies", "equal-token", "--json")
    assert run("--workload", workload, *arguments) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content["policies"]) == ["equal-token, grid", "equal-token"]


def rows_of(workload: Path) -> dict[str, list[str]]:
    lines = workload.read_text().splitlines()[1:]
    return {line.split(",")[0]: line.split(",")[1:] for line in lines}


@pytest.mark.parametrize("form", ["length", "grid"])
@pytest.mark.parametrize("policy", ["mixed", "lockstep"])
def test_the_schedule_can_be_checked_by_another_program(
    workload: Path, tmp_path: Path, policy: str, form: str
):
    out, figures = tmp_path / "schedule.jsonl", tmp_path / "figures.json"
    arguments = ("--replicas", 4, "--accumulate", 2, "--steps", 6, "--out", figures)
    arguments = (*arguments, "--form", form)
    arguments = (*arguments, "--policies", policy, "--schedule-out", out)
    assert run("--workload", workload, *arguments) == 0
    rows = rows_of(workload)
    cost, own, seen = np.zeros((6, 4)), 0.0, collections.Counter()
    num_tokens = num_padded = 0
    for line in out.read_text().splitlines():
        entry = json.loads(line)
        for micro in entry["micro"]:
            row = micro["tokens"]
            assert len(micro["ids"]) == len(micro["starts"]) == micro["batch"]
            num_padded += micro["batch"] * row
            for name, start, text in zip(
                micro["ids"], micro["starts"], micro["shapes"], strict=True
            ):
                seen[name, start] += 1
                shape = Shape.parse(text, DEFAULT)
                assert shape.tokens == row if form == "grid" else shape.tokens <= row
                check_sample(rows[name], start, shape, all_frames=form == "length")
                cost[entry["step"], entry["replica"]] += flops(row, shape.tokens)
                own += flops(shape.tokens, shape.tokens)
                num_tokens += shape.tokens
    assert max(seen.values()) == 1
    found = json.loads(figures.read_text())["policies"][policy]
    idle = 1 - cost.mean(axis=1).sum() / cost.max(axis=1).sum()
    # The command also counts embeddings and the text.
    assert found["idle_share"] == pytest.approx(idle, abs=2e-3)
    lost = 1 - own / (4 * cost.max(axis=1).sum())
    assert found["lost"] == pytest.approx(lost, abs=2e-3)
    assert found["padding"] == pytest.approx(1 - num_tokens / num_padded)


def check_sample(row: list[str], start: int, shape: Shape, *, all_frames: bool) -> None:
    """Asserts that a clip of a row of the workload has this shape."""
    num_frames, row_height, row_width, fps = map(float, row)
    if num_frames > 1:
        num_frames = (num_frames - 1) * 16 // fps + 1
    frames, height, width = shape.pixels
    left = min(num_frames - start, 81)
    assert frames <= left
    if all_frames:
        assert left - frames < 4
    assert max(height / row_height, width / row_width) <= 1.2


@pytest.mark.slow
@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_limits_of_the_documentation_hold(path: Path, tmp_path: Path):
    def figures(*arguments: object) -> dict:
        out = tmp_path / "figures.json"
        assert run("--workload", path, *arguments, "--out", out) == 0
        return json.loads(out.read_text())

    few = ("--steps", 50, "--policies", "lockstep", "mixed")
    content = figures("--replicas", 16, "--accumulate", 4, *few)
    is_images = path.stem in ("coco_val2017", "laion_aesthetics")
    catalogue, policies = content["catalogue"], content["policies"]
    assert len(catalogue["forms"]) <= 32
    assert max(p["num_compiles"] or 0 for p in policies.values()) <= 64
    # Images have more sizes than a dataset may have.
    least = {"laion_aesthetics": 0.95, "coco_val2017": 0.99, "mix_dev": 0.98}
    assert catalogue["kept"] >= least.get(path.stem, 0.995)
    left_out = sum(left["count"] for left in catalogue["left_out"])
    assert left_out < max(LEFT_OUT_BY_SHAPES[path.stem], 1)
    if path.stem not in FEW_SHAPES:
        grid = figures(
            *("--replicas", 16, "--accumulate", 4, "--form", "grid"),
            *("--steps", 50, "--policies", "lockstep"),
        )
        distinct, of_grid = (
            found["policies"]["lockstep"]["distinct_shapes_per_step"]
            for found in (content, grid)
        )
        assert distinct >= 1.8 * of_grid  # Twice as many over more steps.
    for policy in ("lockstep", "mixed"):
        assert policies[policy]["lost"] <= (0.03 if is_images else 0.01)
    assert content["policies"]["mixed"]["mixing"] >= 0.8
    assert content["policies"]["mixed"]["max_memory_share"] <= 1.0
    mixed = ("--policies", "mixed", "--steps", 50)
    content = figures("--replicas", 16, "--accumulate", 1, *mixed)
    assert content["policies"]["mixed"]["idle_share"] <= 0.03
    mixed = ("--policies", "mixed", "--steps", 3)
    content = figures("--replicas", 1024, "--accumulate", 4, *mixed)
    assert content["policies"]["mixed"]["idle_share"] <= 0.03


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
        (("--replicas", 100_000), r"samples: expected 100000 or more, a batch for"),
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
    arguments = (*arguments, "--form", "grid")
    assert run("--workload", workload, *arguments) == 0
    printed = capsys.readouterr().out
    assert "lockstep is left out: no class has 390 samples" in printed
