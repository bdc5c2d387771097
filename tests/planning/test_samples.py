"""Tests of jaxload.planning.samples: shapes with too few samples for a batch."""

import dataclasses
from typing import Literal

import pytest

from jaxload.balance.program import Layout
from jaxload.config import Config
from jaxload.data.manifest import Manifest
from jaxload.planning.samples import prepared_samples


@pytest.mark.parametrize(
    ("policy", "num_replicas"), [("lockstep", 1), ("lockstep", 3), ("mixed", 3)]
)
def test_a_shape_needs_samples_for_one_batch_of_the_layout(
    debug_config: Config,
    debug_manifest: Manifest,
    policy: Literal["lockstep", "mixed"],
    num_replicas: int,
):
    counts = {s: len(rows) for s, rows in debug_manifest.rows_by_shape.items()}
    rarest = min(counts.values())
    needed = num_replicas if policy == "lockstep" else 1
    balance = dataclasses.replace(debug_config.balance, policy=policy)
    layout = Layout(batch=rarest // needed)
    found = prepared_samples(debug_manifest, balance, layout, num_replicas=num_replicas)
    assert set(found.cover.shapes) == set(counts)
    layout = Layout(batch=rarest // needed + 1)
    found = prepared_samples(debug_manifest, balance, layout, num_replicas=num_replicas)
    rare = {s for s, n in counts.items() if n < needed * layout.batch}
    assert set(found.cover.shapes) == set(counts) - rare
    assert sum(left_out.count for left_out in found.cover.left_out) == sum(
        counts[shape] for shape in rare
    )
    assert rare
