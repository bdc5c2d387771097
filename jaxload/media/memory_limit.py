"""Memory that the processes of this machine or container may use."""

import os
from collections.abc import Iterator
from pathlib import Path

PIXELS_SHARE = 0.25
"""Share of the memory for clips that are decoded and not encoded yet."""


def memory_limit(root: Path = Path("/")) -> int:
    """Returns the machine's memory in bytes, or the limit of its cgroup if lower.

    Containers and cluster jobs run in a cgroup, whose limit is often far below the
    machine's memory. `root` is the root of the file system.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_cgroup_limits(root)])


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yields the limits of this process's cgroups and of all cgroups around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # The kernel has no cgroups.
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:  # Version 2.
            top, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / name.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(top):
                yield from _read(directory / file)


def _read(path: Path) -> Iterator[int]:
    try:
        text = path.read_text().strip()
    except OSError:  # The root has no limit; a container may not see its own group.
        return
    if text.isdigit():  # Otherwise "max".
        yield int(text)
