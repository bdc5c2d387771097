"""Names, shapes and types of the arrays of a micro-batch."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from jaxload.balance.program import Program
from jaxload.data.record import BFLOAT16


@runtime_checkable
class ModelSizes(Protocol):
    """Sizes of a model that determine the shapes of its inputs."""

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

    The inputs are `latent` [B, F, H, W, C], `text` [B, T, E] padded with zeros, and
    `id` [B], the samples' rows in the dataset.
    """
    shape, batch = program.form.shape, program.batch
    latent = (batch, shape.frames, shape.height, shape.width, model.channels)
    text = (batch, model.num_text_tokens, model.text_dim)
    return {
        "latent": ArraySpec(latent, BFLOAT16),
        "text": ArraySpec(text, BFLOAT16),
        "id": ArraySpec((batch,), np.dtype(np.int32)),
    }


def random_batch(spec: dict[str, ArraySpec], *, seed: int) -> dict[str, np.ndarray]:
    """Returns random arrays that match a spec, for timing programs."""
    rng = np.random.default_rng(seed)
    return {
        name: np.arange(array.shape[0], dtype=array.dtype)
        if array.dtype.kind == "i"
        else rng.standard_normal(array.shape, np.float32).astype(array.dtype)
        for name, array in spec.items()
    }


def batch_bytes(spec: dict[str, ArraySpec]) -> int:
    """Returns the total bytes of the arrays of a spec."""
    return sum(
        int(np.prod(array.shape)) * array.dtype.itemsize for array in spec.values()
    )
