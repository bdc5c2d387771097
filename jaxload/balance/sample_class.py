"""Classes of samples: which samples of a dataset run in the programs of a form."""

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxload.balance.form import Form, Grid, Length
from jaxload.shapes.shape import Shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of the samples of a class, without padding."""

    shortest: int
    longest: int
    mean: float
    num_grids: int
    """Number of distinct latent shapes."""

    num_images: int
    """Number of samples of one frame."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleClass:
    """Samples that run in programs of one form, counted by shape."""

    form: Form
    shapes: tuple[Shape, ...]
    """Latent shapes that run, by ascending tokens; of a cut sample, its first frames.
    """

    counts: tuple[int, ...]
    """Number of samples of each shape, one or more."""

    @classmethod
    def of(cls, form: Form, counts: Mapping[Shape, int]) -> "SampleClass":
        """Builds a class from the number of samples of each shape."""
        shapes = sorted(counts, key=lambda shape: (shape.tokens, shape))
        return cls(
            form=form,
            shapes=tuple(shapes),
            counts=tuple(counts[shape] for shape in shapes),
        )

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return sum(self.counts)

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of a sample of each shape."""
        return np.array([shape.tokens for shape in self.shapes])

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples, without padding."""
        return int(self.tokens @ np.array(self.counts))

    @property
    def lengths(self) -> Lengths:
        """Tokens of the samples."""
        return Lengths(
            shortest=self.shapes[0].tokens,
            longest=self.shapes[-1].tokens,
            mean=self.num_tokens / self.num_samples,
            num_grids=len(self.shapes),
            num_images=sum(
                n
                for shape, n in zip(self.shapes, self.counts, strict=True)
                if shape.frames == 1
            ),
        )


def assign_forms(
    shapes: Iterable[Shape], forms: Sequence[Form], *, may_cut: bool
) -> dict[Shape, tuple[int, Shape]]:
    """Assigns the shapes of samples to forms; leaves out shapes that no form takes.

    A sample goes to the shortest `Length` that holds all of its tokens, or to the
    `Grid` of its shape. If there is none, and `may_cut`, as many of the sample's first
    latent frames run as a form takes. A clip of several frames never becomes a still.

    Returns:
        For each shape, the index of its form, and the shape that runs.
    """
    lengths = sorted(
        (form.tokens, i) for i, form in enumerate(forms) if isinstance(form, Length)
    )
    grids = {form.shape: i for i, form in enumerate(forms) if isinstance(form, Grid)}
    found = {}
    for shape in shapes:
        cut = _of_lengths(shape, lengths, may_cut=may_cut)
        cut = cut or _of_grids(shape, grids, may_cut=may_cut)
        if cut is not None:
            found[shape] = cut
    return found


def _of_lengths(
    shape: Shape, lengths: Sequence[tuple[int, int]], *, may_cut: bool
) -> tuple[int, Shape] | None:
    if not lengths:
        return None
    longest, _ = lengths[-1]
    if shape.tokens > longest:
        frames = longest // shape.first_frames(1).tokens
        if not may_cut or frames < 2:
            return None
        shape = shape.first_frames(frames)
    index = bisect.bisect_left(lengths, (shape.tokens, -1))
    return lengths[index][1], shape


def _of_grids(
    shape: Shape, grids: Mapping[Shape, int], *, may_cut: bool
) -> tuple[int, Shape] | None:
    # A latent frame is a frame of tokens, so the frames of a grid are those it keeps.
    fewest = min(shape.frames, 2) if may_cut else shape.frames
    for frames in range(shape.frames, fewest - 1, -1):
        cut = shape.first_frames(frames)
        if cut in grids:
            return grids[cut], cut
    return None


def make_classes(
    counts: Mapping[Shape, int], forms: Sequence[Form], *, may_cut: bool
) -> list[SampleClass | None]:
    """Counts the samples of each form, by the shape that runs; None if it has none."""
    by_form: list[dict[Shape, int]] = [{} for _ in forms]
    for shape, (index, runs) in assign_forms(counts, forms, may_cut=may_cut).items():
        by_form[index][runs] = by_form[index].get(runs, 0) + counts[shape]
    return [
        SampleClass.of(form, found) if found else None
        for form, found in zip(forms, by_form, strict=True)
    ]
