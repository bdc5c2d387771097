"""Tests of `python -m jaxload.calibrate` and jaxload.planning.step_times."""

import json
from pathlib import Path

import pytest
from PIL import Image

from jaxload import calibrate
from jaxload.balance.calibration import Calibration
from jaxload.errors import InputError
from jaxload.planning import step_times
from jaxload.planning.step_times import default_grid
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

# Far enough apart that longer points take longer even on a busy machine.
GRID = [
    (Shape(1, 4, 4), 1),
    (Shape(16, 16, 16), 1),
    (Shape(1, 4, 4), 64),
    (Shape(4, 16, 16), 2),
    (Shape(4, 16, 16), 1),
]


@pytest.fixture
def arguments(root: Path, tmp_path: Path) -> list[str]:
    """Returns arguments for the debug config and a temporary output file."""
    config = str(root / "configs" / "debug.py")
    return ["--config", config, "--out", str(tmp_path / "calibration.json")]


@pytest.mark.slow
def test_measures_regresses_prints_and_writes(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(step_times, "default_grid", lambda *_: GRID)
    assert calibrate.main(arguments) == 0
    content = json.loads((tmp_path / "calibration.json").read_text())
    calibration = Calibration.from_dict(content, name="calibration.json")
    pairs = sorted((shape.tokens, batch) for shape, batch in GRID)
    assert [(point.tokens, point.batch) for point in calibration.points] == pairs
    with Image.open(tmp_path / "calibration.png") as image:
        assert image.width > image.height > 300
    text = capsys.readouterr().out
    assert "compiling: 5/5" in text
    assert text.count("held out\n") + text.count("held out \n") == 1
    assert "two terms: c0 " in text
    assert "power law: c " in text
    assert "left out" not in text


def test_too_short_a_time_is_refused_with_a_remedy(
    arguments: list[str], tmp_path: Path, capsys
):
    message = r"measuring for 0\.001 s: 0 of 15 points .* longer \(calibrate --seconds"
    with pytest.raises(InputError, match=message):
        calibrate.main([*arguments, "--seconds", "0.001"])
    assert "15 of 15 points are left out" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_an_invalid_time_is_refused(arguments: list[str], seconds: str):
    with pytest.raises(InputError, match=f"--seconds {seconds}: expected a positive"):
        calibrate.main([*arguments, "--seconds", seconds])


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("absent/calibration.json", r"cannot be written \(No such file or directory\)"),
        ("file/calibration.json", r"cannot be written \(Not a directory\)"),
        ("folder.json", r"expected a file that ends in \.json"),
        ("calibration.png", r"expected a file that ends in \.json"),
    ],
)
def test_an_invalid_output_path_is_refused_before_measuring(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    message: str,
):
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    monkeypatch.delattr(calibrate, "measure_costs")
    with pytest.raises(InputError, match=message):
        calibrate.main([*arguments, "--out", str(tmp_path / out)])


@pytest.mark.parametrize("max_tokens", [8, 64, 640, 4_097, 75_600, 1_000_000])
def test_the_grid_has_lengths_and_batch_sizes_within_the_budget(max_tokens: int):
    grid = default_grid(max_tokens, DEFAULT)
    assert len(set(grid)) == len(grid) <= 18
    assert all(shape.tokens * batch <= max_tokens for shape, batch in grid)
    assert max(shape.tokens for shape, _ in grid) > 0.9 * max_tokens
    batches: dict[int, set[int]] = {}
    for shape, batch in grid:
        batches.setdefault(shape.tokens, set()).add(batch)
    assert len(batches) >= 5
    assert all(1 in sizes for sizes in batches.values())
    assert sum(len(sizes) >= 2 for sizes in batches.values()) >= 3


def test_the_grid_begins_with_its_corners():
    grid = default_grid(640, DEFAULT)
    corners = {(16, 1), (16, 40), (640, 1)}
    assert {(shape.tokens, batch) for shape, batch in grid[:3]} == corners
    assert len({shape.tokens for shape, _ in grid[:5]}) >= 3


def test_a_budget_for_too_few_lengths_is_refused():
    with pytest.raises(InputError, match=r"balance\.max_tokens=7: expected 8 or more"):
        default_grid(7, DEFAULT)
