"""Tests that the functions named in docs/architecture.md exist."""

import pkgutil
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
SECTION = PAGE.read_text().split("## The path of one sample")[1].split("\n## ")[0]
NAMES = re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", SECTION)
NAMES = [name for name in NAMES if name != "metrics.jsonl"]


@pytest.mark.parametrize("name", NAMES)
def test_a_named_function_exists(name: str):
    assert pkgutil.resolve_name(f"jaxload.{name}") is not None


def test_the_list_covers_the_way_from_file_to_update():
    packages = {name.split(".")[0] for name in NAMES}
    assert {"media", "codecs", "data", "balance", "parallel", "training"} <= packages
    assert len(NAMES) > 15
