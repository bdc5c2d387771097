"""Rows of a dataset that run in the programs of each form."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxload.balance.form import Form
from jaxload.balance.sample_class import assign_forms
from jaxload.data.manifest import Manifest
from jaxload.shapes.shape import Shape


class SampleSizes(NamedTuple):
    """Sizes of the samples of one shape, in tokens."""

    num_stored: int
    """Number of tokens of the record."""

    num_tokens: int
    """Tokens that run: all, or those of the first latent frames."""

    grid: tuple[int, int, int]
    """Tokens that run along frames, rows and columns."""


class _Rows(NamedTuple):
    """Rows of one form, ascending."""

    rows: np.ndarray
    codes: np.ndarray
    """Index of each row's shape in `Manifest.shape_codes`."""


def shape_counts(manifest: Manifest) -> dict[Shape, int]:
    """Counts the samples of each shape, without masked rows."""
    shapes, codes = manifest.shape_codes
    counts = np.bincount(codes, minlength=len(shapes))
    return dict(zip(shapes, counts.tolist(), strict=True))


@dataclasses.dataclass(frozen=True)
class FormRows:
    """Rows of each form of a catalogue, as `assign_forms` assigns their shapes.

    Rows are assigned on demand. A pickled copy assigns them again in its process,
    because ten million rows are faster to assign than to send.
    """

    manifest: Manifest
    forms: tuple[Form, ...]
    """Distinct forms."""

    def __getstate__(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "forms": self.forms}

    def num_rows(self, form: Form) -> int:
        """Returns the number of rows of a form."""
        return len(self._rows[form].rows)

    def take(
        self, form: Form, members: np.ndarray
    ) -> tuple[np.ndarray, list[SampleSizes]]:
        """Returns the rows of a form with these indices, and their sizes.

        Indices count the rows of the form in ascending order.
        """
        rows, codes = self._rows[form]
        return rows[members], [self._sizes[code] for code in codes[members].tolist()]

    @functools.cached_property
    def _assigned(self) -> dict[Shape, tuple[int, Shape]]:
        shapes, _ = self.manifest.shape_codes
        return assign_forms(shapes, self.forms, may_cut=self.manifest.may_cut)

    @functools.cached_property
    def _sizes(self) -> list[SampleSizes]:
        """Sizes by the code of the stored shape; of no meaning if no form takes it."""
        shapes, _ = self.manifest.shape_codes
        runs = [self._assigned.get(shape, (0, shape))[1] for shape in shapes]
        return [
            SampleSizes(stored.tokens, cut.tokens, cut.token_grid)
            for stored, cut in zip(shapes, runs, strict=True)
        ]

    @functools.cached_property
    def _rows(self) -> Mapping[Form, _Rows]:
        shapes, codes = self.manifest.shape_codes
        none = len(self.forms)
        small = np.uint8 if none < 1 << 8 else np.uint16  # Sorts by counting.
        form_of = np.array(
            [self._assigned.get(shape, (none,))[0] for shape in shapes], small
        )
        index = form_of[codes]
        order = np.argsort(index, kind="stable").astype(np.int32)
        codes = codes[order]
        rows = self.manifest.used_rows[order] if self.manifest.masked else order
        ends = np.cumsum(np.bincount(index, minlength=none + 1))[:none]
        parts = zip(np.split(rows, ends), np.split(codes, ends), strict=True)
        return dict(zip(self.forms, (_Rows(*part) for part in parts), strict=False))
