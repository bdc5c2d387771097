"""Tests that the code examples in docs/models.md run as written."""

import re
from pathlib import Path

import pytest

from jaxload.models import weights
from tests.models.tiny import CONFIGS, make, randomized

DOCS = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_lines_that_load_weights_and_run_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    loading = next(block for block in blocks if "weights.load(" in block)
    lines = [line for line in loading.splitlines() if line and "import" not in line]
    assert len(lines) == 5
    (name,) = re.findall(r'weights.load\("(.*?)"', loading)
    (tmp_path / name).parent.mkdir(parents=True)
    weights.save(randomized(make(CONFIGS["wan"])), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(loading, found)
    assert found["latents"].shape == (1, 5, 16, 16, 16)
    assert abs(found["velocity"]).max() > 0
