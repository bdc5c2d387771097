"""Tests of lists of samples that were damaged, forged or edited by hand."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxload.console import Console
from jaxload.data.workload import is_prepared
from jaxload.errors import InputError
from jaxload.planning.clip_ids import ClipIds
from jaxload.planning.samples import shaped_samples, surveyed_samples
from jaxload.planning.survey import Survey, survey_manifest
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT
from tests.json_edits import ODD, assert_one_line, damaged, edits, fewer

RULES = ShapeRules()
QUIET = Console(quiet=True)
MANIFEST: dict[str, list[Any]] = {
    "id": [f"clip{i}" for i in range(24)],
    "num_frames": 8 * [1, 81, 200],
    "height": 12 * [480, 720],
    "width": 12 * [832, 1280],
    "fps": 8 * [0.0, 16.0, 24.0],
}
HISTOGRAM: dict[str, list[Any]] = {
    **{name: MANIFEST[name] for name in ("num_frames", "height", "width")},
    "count": 24 * [1_000],
}


def check(path: Path) -> Survey | None:
    """Counts the clips of a list; returns None if it is refused in one line."""
    try:
        assert not is_prepared(path)
        return survey_manifest(path, RULES, DEFAULT, max_bad_share=1.0, console=QUIET)
    except InputError as error:
        assert_one_line(error, path)
    return None


def plan(path: Path) -> None:
    """Chooses sizes and shapes for a list, and names some clips of a shape."""
    survey = check(path)
    if survey is None:
        return
    for choose in (
        lambda: surveyed_samples(survey, RULES, may_cut=True, console=QUIET),
        lambda: shaped_samples(
            survey, RULES, max_shapes=2, min_samples=2, console=QUIET
        ),
    ):
        try:
            cover = choose().cover
            ids = ClipIds(path, RULES, cover.shapes, DEFAULT)
            found, _ = ids.look_up(0, np.arange(min(4, cover.num_samples[0])))
        except InputError as error:
            assert_one_line(error)
        else:
            assert all(isinstance(name, str | None) for name in found)


def as_csv(table: dict[str, list[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=False))
    return text.getvalue().encode("utf-8", "replace")


def as_parquet(table: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


TABLES = st.sampled_from([MANIFEST, HISTOGRAM])


@pytest.mark.fuzz
@fewer(10)  # Choosing shapes takes a while.
@given(table=TABLES.flatmap(lambda table: edits(table, most=4)))
@example(table=HISTOGRAM | {"count": 24 * [2**52]})
@example(table=MANIFEST | {"height": [2**70, "9" * 5_000, "1e999", *21 * ["nan"]]})
def test_an_edited_csv_file_is_planned_or_one_line(tmp_path: Path, table: Any):
    path = tmp_path / "list.csv"
    try:
        path.write_bytes(as_csv(table))
    except (AttributeError, TypeError, csv.Error):  # Not a table.
        path.write_bytes(str(table).encode("utf-8", "replace"))
    plan(path)


@pytest.mark.fuzz
@given(data=st.data())
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_damaged_table_is_planned_or_one_line(
    tmp_path: Path, suffix: str, data: st.DataObject
):
    path = tmp_path / f"list{suffix}"
    write = as_csv if suffix == ".csv" else as_parquet
    path.write_bytes(data.draw(damaged(write(data.draw(TABLES)))))
    check(path)


COLUMNS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=4, max_size=4),
    st.lists(st.floats() | st.none(), min_size=4, max_size=4),
    st.lists(st.text() | st.none(), min_size=4, max_size=4),
    st.lists(st.binary() | st.none(), min_size=4, max_size=4),
    st.lists(st.booleans() | st.none(), min_size=4, max_size=4),
    st.lists(st.lists(st.integers(0, 3)), min_size=4, max_size=4),
    st.lists(st.sampled_from([1, 5, 2**52, 2**53]), min_size=4, max_size=4),
    st.lists(st.datetimes() | st.none(), min_size=4, max_size=4),
    st.lists(
        st.decimals(allow_nan=False, min_value=-9, max_value=9, places=2),
        min_size=4,
        max_size=4,
    ),
)


@pytest.mark.fuzz
@given(data=st.data())
def test_parquet_columns_of_any_type_are_planned_or_one_line(
    tmp_path: Path, data: st.DataObject
):
    table = {name: cells[:4] for name, cells in data.draw(TABLES).items()}
    for name in data.draw(st.lists(st.sampled_from([*table]), min_size=1, max_size=3)):
        table[name] = data.draw(COLUMNS)
    path = tmp_path / "list.parquet"
    path.write_bytes(as_parquet(table))
    check(path)


@pytest.mark.fuzz
@given(cells=st.lists(ODD, min_size=1, max_size=6), name=st.sampled_from([*MANIFEST]))
def test_odd_cells_are_planned_or_one_line(tmp_path: Path, cells: Any, name: str):
    path = tmp_path / "list.csv"
    path.write_bytes(as_csv(MANIFEST | {name: (cells * 24)[:24]}))
    check(path)
