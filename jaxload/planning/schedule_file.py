"""Writes a schedule with the clips of each micro-batch, for other programs to check."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxload.balance.bucket import Bucket
from jaxload.balance.form import Form
from jaxload.balance.sample_class import assign_forms
from jaxload.balance.schedule import Schedule
from jaxload.console import Console, phase
from jaxload.files import write_atomically
from jaxload.planning.clip_ids import ClipIds
from jaxload.planning.samples import Samples
from jaxload.shapes.shape import Shape


def write_schedule(
    schedule: Schedule,
    samples: Samples,
    ids: ClipIds,
    path: Path,
    *,
    num_steps: int,
    console: Console,
) -> None:
    """Writes the first steps: one JSON object per line for each step and replica.

    Args:
        schedule: Schedule to write.
        samples: Samples of the list, whose shapes `ids` knows by index.
        ids: Ids of the clips of each shape.
        path: File to write.
        num_steps: Number of steps.
        console: Shows progress.
    """
    forms = list(dict.fromkeys(bucket.form for bucket in schedule.buckets))
    members = _Members(samples, forms)
    with phase(console, f"writing {path}", num_steps) as advance:

        def lines() -> Iterator[str]:
            for step in range(num_steps):
                for replica in range(schedule.num_replicas):
                    micro = [
                        _row(schedule.buckets[m.bucket], m.members, members, ids)
                        for m in schedule.micro_batches(step, replica)
                    ]
                    row = {"step": step, "replica": replica, "micro": micro}
                    yield json.dumps(row) + "\n"
                advance()

        write_atomically(path, lines())


class _Members:
    """Samples of each form: the shape of each member, and its index in that shape."""

    def __init__(self, samples: Samples, forms: Sequence[Form]):
        self._index = {shape: i for i, shape in enumerate(samples.cover.shapes)}
        counts = samples.counts
        assigned = assign_forms(counts, forms, may_cut=samples.may_cut)
        self._runs = {shape: runs for shape, (_, runs) in assigned.items()}
        self._of: dict[Form, tuple[list[Shape], np.ndarray]] = {}
        for i, form in enumerate(forms):
            mine = [shape for shape, (index, _) in assigned.items() if index == i]
            self._of[form] = mine, np.cumsum([counts[shape] for shape in mine])

    def look_up(self, form: Form, members: np.ndarray) -> list[tuple[int, int, Shape]]:
        """Returns the index of each member's shape, its index there, and what runs."""
        shapes, ends = self._of[form]
        found = []
        for member in members.tolist():
            index = int(np.searchsorted(ends, member, side="right"))
            shape = shapes[index]
            nth = member - (int(ends[index - 1]) if index else 0)
            found.append((self._index[shape], nth, self._runs[shape]))
        return found


def _row(
    bucket: Bucket, members: np.ndarray, known: _Members, clip_ids: ClipIds
) -> dict:
    """Returns one micro-batch as JSON values."""
    found = known.look_up(bucket.form, members)
    ids, starts = [], []
    for shape, nth, _ in found:
        names, firsts = clip_ids.look_up(shape, np.array([nth]))
        ids += names
        starts += firsts
    return {
        "form": str(bucket.form),
        "tokens": bucket.tokens,
        "batch": bucket.batch,
        "ids": ids,
        "starts": starts,
        "shapes": [str(runs) for *_, runs in found],
    }
