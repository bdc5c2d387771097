"""Tests of jaxload.data.form_rows."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from jaxload.balance.form import Form, Grid, Length
from jaxload.balance.sample_class import assign_forms
from jaxload.data.form_rows import FormRows, shape_counts
from jaxload.data.manifest import Entry, Manifest, entry_table, write_manifest
from jaxload.data.shard import Shard
from jaxload.shapes.shape import Shape

SHAPES = [
    Shape(1, 2, 2),
    Shape(1, 4, 6),
    Shape(3, 2, 4),
    Shape(7, 4, 4),
    Shape(9, 6, 8),
]
FORMS = (Length(30), Length(6), Grid(1, 4, 6), Length(1))


def make_manifest(
    directory: Path, shapes: Sequence[Shape], *, is_causal: bool = True, masked=()
) -> Manifest:
    """Writes the manifest of a dataset without records."""
    entries = [
        Entry(id=f"{i}", source="", caption="", text_tokens=0, shape=shape)
        for i, shape in enumerate(shapes)
    ]
    write_manifest(directory, [entry_table(entries)], [], {})
    return Manifest(
        directory=directory,
        shards=(Shard(name="", num_records=len(shapes), num_bytes=0, digest=""),),
        fingerprint={"is_causal": is_causal},
        masked=masked,
    )


def expected_rows(manifest: Manifest, forms: Sequence[Form]) -> dict[Form, list]:
    """Assigns the rows one by one; returns each with its sizes."""
    sizes = [manifest.read_column(n).to_pylist() for n in ("frames", "height", "width")]
    stored = [Shape(*size) for size in zip(*sizes, strict=True)]
    found = assign_forms(stored, forms, may_cut=manifest.may_cut)
    rows: dict[Form, list] = {form: [] for form in forms}
    for row in manifest.used_rows.tolist():
        if stored[row] in found:
            index, runs = found[stored[row]]
            sizes = (stored[row].tokens, runs.tokens, runs.token_grid)
            rows[forms[index]].append((row, sizes))
    return rows


def taken(form_rows: FormRows, form: Form, members: np.ndarray) -> list:
    rows, sizes = form_rows.take(form, members)
    assert rows.dtype == np.int32
    return list(zip(rows.tolist(), sizes, strict=True))


def drawn(num_rows: int) -> list[Shape]:
    rng = np.random.default_rng(0)
    return [SHAPES[i] for i in rng.integers(len(SHAPES), size=num_rows)]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("masked", [(), ((3, 20), (40, 41))])
def test_each_form_has_the_rows_of_its_shapes(tmp_path: Path, is_causal, masked):
    manifest = make_manifest(tmp_path, drawn(60), is_causal=is_causal, masked=masked)
    form_rows = FormRows(manifest, FORMS)
    expected = expected_rows(manifest, FORMS)
    # The longest shape runs only if its first frames may stand for it.
    assert any(size[0] != size[1] for _, size in expected[FORMS[0]]) == is_causal
    for form in FORMS:
        rows = expected[form]
        assert form_rows.num_rows(form) == len(rows)
        assert taken(form_rows, form, np.arange(len(rows))) == rows
        members = np.array([len(rows) - 1, 0], np.int64)[: len(rows)]
        assert taken(form_rows, form, members) == [rows[i] for i in members]
    counts = shape_counts(manifest)
    assert counts == {s: len(rows) for s, rows in manifest.rows_by_shape.items()}


def test_a_copy_for_another_process_is_small_and_equal(tmp_path: Path):
    form_rows = FormRows(make_manifest(tmp_path, drawn(2_000)), FORMS)
    members = np.arange(form_rows.num_rows(FORMS[0]))
    expected = taken(form_rows, FORMS[0], members)
    content = pickle.dumps(form_rows)
    assert len(content) < 4_000
    assert taken(pickle.loads(content), FORMS[0], members) == expected


def test_more_shapes_and_forms_than_small_numbers_count(tmp_path: Path):
    shapes = [Shape(f, 2 * h, 2) for f in range(1, 300) for h in range(1, 240)]
    assert len(shapes) > 1 << 16
    forms = tuple(Length(tokens) for tokens in range(100, 400))
    manifest = make_manifest(tmp_path, shapes)
    form_rows, expected = FormRows(manifest, forms), expected_rows(manifest, forms)
    for form in forms:
        rows = expected[form]
        assert taken(form_rows, form, np.arange(len(rows))) == rows
