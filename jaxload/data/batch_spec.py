"""Names, shapes and types of the arrays of a micro-batch."""

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from jaxload.balance.form import Length
from jaxload.balance.program import Program
from jaxload.data.record import BFLOAT16
from jaxload.shapes.geometry import Sizes

_INT32 = np.dtype(np.int32)
_MAX_SIZE = 1_024  # Most tokens along an axis of a random grid; models limit them.


@runtime_checkable
class ModelSizes(Protocol):
    """Sizes of a model that determine the shapes of its inputs."""

    patch: ClassVar[Sizes]

    @property
    def channels(self) -> int: ...

    @property
    def num_text_tokens(self) -> int: ...

    @property
    def text_dim(self) -> int: ...


class ArraySpec(NamedTuple):
    """Shape and type of one array of a micro-batch; axis 0 counts the samples."""

    shape: tuple[int, ...]
    dtype: np.dtype


def batch_spec(model: ModelSizes, program: Program) -> dict[str, ArraySpec]:
    """Returns the specs of a program's inputs, for the samples of one replica.

    The inputs are `tokens` [B, S, P], `text` [B, T, E] padded with zeros, and `id` [B],
    the samples' rows in the dataset. If each sample has a shape of its own, its tokens
    are padded with zeros, and `grid` [B, 3] states the tokens along frames, rows and
    columns.
    """
    form, batch = program.form, program.batch
    width = math.prod(model.patch) * model.channels
    text = (batch, model.num_text_tokens, model.text_dim)
    grid = {"grid": ArraySpec((batch, 3), _INT32)} if isinstance(form, Length) else {}
    return {
        "tokens": ArraySpec((batch, form.tokens, width), BFLOAT16),
        **grid,
        "text": ArraySpec(text, BFLOAT16),
        "id": ArraySpec((batch,), _INT32),
    }


def random_batch(
    spec: dict[str, ArraySpec], *, seed: int, lengths: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Returns random arrays that match a spec, for timing programs.

    Args:
        spec: Spec of the arrays.
        seed: Seed of the values.
        lengths: Most tokens of each sample, if samples have grids of their own; None:
            those of a row. The grid has nearly as many, as it is a product of three.
    """
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.standard_normal(array.shape, np.float32).astype(array.dtype)
        for name, array in spec.items()
        if array.dtype == BFLOAT16
    }
    batch, num_tokens, _ = spec["tokens"].shape
    arrays["id"] = np.arange(batch, dtype=_INT32)
    if "grid" in spec:
        most = [num_tokens] * batch if lengths is None else list(lengths)
        assert len(most) == batch
        assert 1 <= min(most) <= max(most) <= num_tokens
        grids = [_largest_grid(tokens) for tokens in most]
        arrays["grid"] = np.array(grids, _INT32)
        for tokens, grid in zip(arrays["tokens"], grids, strict=True):
            tokens[math.prod(grid) :] = 0
    return {name: arrays[name] for name in spec}


def _largest_grid(num_tokens: int) -> Sizes:
    """Returns a grid of at most this many tokens, and as many as possible."""
    frames = -(-num_tokens // _MAX_SIZE**2)
    per_frame = num_tokens // frames
    columns = np.arange(-(-per_frame // _MAX_SIZE), min(per_frame, _MAX_SIZE) + 1)
    rows = per_frame // columns
    best = int((rows * columns).argmax())
    return frames, int(rows[best]), int(columns[best])


def batch_bytes(spec: dict[str, ArraySpec]) -> int:
    """Returns the total bytes of the arrays of a spec."""
    return sum(
        int(np.prod(array.shape)) * array.dtype.itemsize for array in spec.values()
    )
