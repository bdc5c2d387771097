"""Tests of jaxload.media.memory_limit, with the files of simulated cgroups."""

import os
from pathlib import Path

import pytest

from jaxload.media.memory_limit import memory_limit

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("job", "step", "expected"),
    [("1000", "max", 1000), ("1000", "999", 999), ("max", "max", MACHINE)],
)
def test_the_lowest_limit_of_all_groups_counts(
    tmp_path: Path, job: str, step: str, expected: int
):
    write(tmp_path / "proc/self/cgroup", "0::/slurm/job/step\n")
    groups = tmp_path / "sys/fs/cgroup/slurm"
    write(groups / "job/memory.max", f"{job}\n")
    write(groups / "job/step/memory.max", f"{step}\n")
    assert memory_limit(tmp_path) == expected


def test_cgroups_of_version_1(tmp_path: Path):
    write(tmp_path / "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/1\n")
    # Inside of the container, its own group is the root.
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n")
    assert memory_limit(tmp_path) == 4096


def test_without_cgroups_the_machine_is_the_limit(tmp_path: Path):
    assert memory_limit(tmp_path) == MACHINE
