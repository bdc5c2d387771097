"""Runs the benchmarks as commands on little data, and checks exit codes and rows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TORCH = "JAXLOAD_BENCH_TORCH"


def run(name: str, *arguments: object, **environment: str) -> tuple[int, str]:
    """Runs `python -m benchmarks.NAME`; returns its exit code and its output."""
    result = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    # The exit code is 1 for a missed goal, as on a busy machine, 2 for a usage error.
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, result.stdout if result.returncode < 2 else result.stderr


@pytest.mark.parametrize("workload", ["few-long", "uhd"])
def test_drawn_workloads_are_reproducible(workload: str, root: Path, tmp_path: Path):
    manifest, histogram = tmp_path / "manifest.csv", tmp_path / "histogram.csv"
    assert run("draw_workload", workload, manifest) == (0, "")
    assert run("histogram", manifest, histogram) == (0, "")
    stored = root / "benchmarks" / "workloads" / f"{workload.replace('-', '_')}.csv"
    assert histogram.read_text() == stored.read_text()


@pytest.mark.parametrize(
    ("printed", "expected"),
    [("encoders waited for decoding 12.5% of the time", "0.125"), ("waited 12.5%", "")],
)
def test_a_share_that_is_not_printed_is_no_share_of_zero(
    root: Path, printed: str, expected: str
):
    program = (
        f"from benchmarks import preparing; print(preparing.wait_share({printed!r}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == expected
    missing = "no share of the time that encoders waited in 'waited 12.5%'"
    assert (missing in result.stderr) == (not expected)


def test_planning_for_fewer_samples_than_replicas_is_refused():
    code, printed = run("planning", "--rows", 1023)
    assert code == 2
    assert "--rows 1023: expected 1024 or more" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "names", "note"),
    [
        ("samples", ["histogram of 252,930", "Parquet of 252,930"], " lengths, "),
        ("look-up", ["look-up among 10,000,009,100"], "median of 50 steps"),
        ("tiny and huge", ["tiny and huge"], "2,000 rows, 2 lengths; slowest: R = "),
    ],
)
def test_planning(part: str, names: list[str], note: str, tmp_path: Path):
    # The benchmark asserts that rows and their histogram give the same plan.
    rows = 200_000 if part == "samples" else 2_000
    code, printed = run(
        "planning", "--only", part, "--rows", rows, TMPDIR=str(tmp_path)
    )
    found = re.findall(r"^│ (\S.*?) +│ +[\d.]+ (?:s|ms) │", printed, re.M)
    assert found == names, printed
    assert note in printed
    assert (code == 1) == ("MISSED" in printed)
    assert list(tmp_path.iterdir()) == []


def test_hard_lists_are_reproducible(root: Path):
    program = """
import numpy as np
from benchmarks.hard_lists import HARD_LISTS
for name, draw in HARD_LISTS.items():
    sizes, again = (draw(np.random.default_rng(0), 2_000) for _ in range(2))
    assert np.array_equal(sizes, again) and sizes.dtype == np.int64, name
    assert 0 < len(sizes) <= 2_000 and sizes.shape[1] == 3, name
    assert sizes[:, 0].min() >= 1 and sizes[:, 1:].min() >= 16, name
    print(name)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tiny and huge" in result.stdout.splitlines(), result.stderr
    assert not result.stderr


@pytest.mark.slow
def test_data_loading(tmp_path: Path):
    # The benchmark asserts that every loader reads all records.
    variables = {"TMPDIR": str(tmp_path), TORCH: "/none"}
    code, printed = run("data_loading", "--quick", **variables)
    assert code == 0
    for name in ("demo", "small clips"):
        found = re.findall(rf"^│ {name} +│ +\d+ │ +(\d) │", printed, re.M)
        assert found == ["0", "1", "2"]
    assert "manifest of 200,000 rows" in printed
    assert "Resident memory while reading 'small clips'" in printed
    assert "Time of a sample in one thread" in printed
    told = [line for line in printed.splitlines() if "PyTorch to compare" in line]
    assert told == [
        f"No PyTorch to compare with: run `make torch`, or set {TORCH} to a Python "
        "that has torch and safetensors."
    ]
    assert not any(tmp_path.glob("*/many"))


@pytest.mark.parity
def test_data_loading_against_pytorch(root: Path):
    if not (root / ".venv" / "torch").is_dir():
        if os.environ.get("JAXLOAD_REQUIRE_TORCH"):
            pytest.fail("PyTorch is not installed; run `make torch`")
        pytest.skip("needs `make torch`")
    # The benchmark asserts that PyTorch reads the same records.
    code, printed = run("data_loading", "--quick", "--only", "throughput")
    assert code == 0
    assert "No PyTorch" not in printed
