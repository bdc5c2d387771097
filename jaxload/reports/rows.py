"""Figure of one micro-batch by length: its rows, their grids and the padding."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxload.balance.form import Length
from jaxload.balance.sample_class import SampleClass, make_classes
from jaxload.balance.stream import stream_members
from jaxload.planning.plan import Plan
from jaxload.planning.samples import Samples
from jaxload.shapes.shape import Shape

_MAX_ROWS = 16
_IMAGE, _FRAMES, _PADDING = "#c4571b", ("#2f6f73", "#5b9a9e"), "#eeeeee"


def has_rows(plan: Plan) -> bool:
    """Returns whether rows of a plan hold samples of different shapes."""
    return any(isinstance(bucket.form, Length) for bucket in plan.buckets)


def draw_rows(plan: Plan, samples: Samples, path: Path) -> None:
    """Draws the first micro-batch of the bucket whose samples have the most grids."""
    bucket = max(
        (b for b in plan.buckets if isinstance(b.form, Length)),
        key=lambda b: (b.lengths.num_grids, b.batch),
    )
    forms = tuple(dict.fromkeys(b.form for b in plan.buckets))
    classes = make_classes(samples.counts, forms, may_cut=samples.may_cut)
    (of_bucket,) = (c for c in classes if c is not None and c.form == bucket.form)
    shapes = _first_rows(of_bucket, min(bucket.batch, _MAX_ROWS))
    figure = Figure(figsize=(9, 1.6 + 0.32 * len(shapes)), layout="constrained")
    axes = figure.subplots()
    for row, shape in enumerate(shapes):
        _draw_row(axes, row, shape, bucket.tokens)
    axes.set_yticks(range(len(shapes)), [_label(shape) for shape in shapes])
    axes.invert_yaxis()
    axes.set_xlim(0, bucket.tokens)
    axes.set(
        xlabel=f"tokens of a row ({bucket.tokens:,})",
        title=f"A micro-batch of the bucket {bucket}: {len(shapes)} of {bucket.batch} "
        f"rows, {bucket.padding:.1%} padding in the mean",
    )
    handles = [
        axes.bar(0, 0, color=_IMAGE, label="image"),
        axes.bar(0, 0, color=_FRAMES[0], label="clip, a band per latent frame"),
        axes.bar(0, 0, color=_PADDING, hatch="///", label="padding"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _first_rows(samples: SampleClass, count: int) -> Sequence[Shape]:
    """Returns the shapes of the first samples of a class's shuffled stream."""
    members = stream_members(
        0, count, num_samples=samples.num_samples, seed=0, stream=0
    )
    index = np.searchsorted(np.cumsum(samples.counts), members, side="right")
    return [samples.shapes[i] for i in index.tolist()]


def _draw_row(axes: Axes, row: int, shape: Shape, num_tokens: int) -> None:
    per_frame = shape.tokens // shape.frames
    for frame in range(shape.frames):
        color = _IMAGE if shape.frames == 1 else _FRAMES[frame % 2]
        axes.barh(row, per_frame, left=frame * per_frame, height=0.75, color=color)
    axes.barh(
        row,
        num_tokens - shape.tokens,
        left=shape.tokens,
        height=0.75,
        color=_PADDING,
        hatch="///",
        edgecolor="#bbbbbb",
    )


def _label(shape: Shape) -> str:
    return "x".join(map(str, shape.pixels))
