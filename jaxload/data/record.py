"""Encodes and decodes records: one sample each, as safetensors bytes."""

import functools
from typing import NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from jaxload import safetensors_header
from jaxload.safetensors_header import LENGTH_BYTES

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_MAX_HEADER_BYTES = 4_096  # A header has about 150; many are cached.

_Axes = tuple[tuple[str, int], tuple[str, int]]
"""Names of the two tensors of a record, with their numbers of axes."""

_TOKEN_AXES: _Axes = (("tokens", 2), ("text", 2))
_LATENT_AXES: _Axes = (("latent", 4), ("text", 2))


class Record(NamedTuple):
    """Stored arrays of a sample: its latent, and its text embedding without padding."""

    tokens: np.ndarray
    """`[L, P]`, ordered as `jaxload.shapes.token_order` says."""

    text: np.ndarray
    """`[T, E]`"""


class LatentRecord(NamedTuple):
    """Stored arrays of a sample in datasets of manifest formats 2 and 3."""

    latent: np.ndarray
    """`[F, H, W, C]`"""

    text: np.ndarray
    """`[T, E]`"""


class TensorRange(NamedTuple):
    """Shape and byte range of a tensor in a record."""

    shape: tuple[int, ...]
    start: int
    stop: int


def encode_record(record: Record) -> bytes:
    """Encodes a record in bfloat16."""
    tensors = {
        "tokens": record.tokens.astype(BFLOAT16),
        "text": record.text.astype(BFLOAT16),
    }
    return save(tensors)


def decode_record(data: bytes) -> Record:
    """Decodes a record; raises `ValueError` if the bytes are not a record.

    The arrays are views of `data`.
    """
    tokens, text = locate(data)
    return Record(_view(data, tokens), _view(data, text))


def decode_latent_record(data: bytes) -> LatentRecord:
    """Decodes a record of manifest formats 2 and 3; see `decode_record`."""
    latent, text = _locate(data, _LATENT_AXES)
    return LatentRecord(_view(data, latent), _view(data, text))


def locate(data: bytes) -> tuple[TensorRange, TensorRange]:
    """Locates tokens and text; raises `ValueError` if the bytes are not a record."""
    return _locate(data, _TOKEN_AXES)


def _locate(data: bytes, axes: _Axes) -> tuple[TensorRange, TensorRange]:
    """Locates the two tensors of a record.

    The safetensors library is not used, because it copies both tensors and parses the
    header of every record, although a dataset has few distinct headers.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    try:
        if length > _MAX_HEADER_BYTES:
            raise ValueError(
                f"expected a header of at most {_MAX_HEADER_BYTES} bytes, got {length}"
            )
        found = _read_header(data[LENGTH_BYTES : LENGTH_BYTES + length], axes)
        if len(data) != found.num_bytes:
            raise ValueError(f"expected {found.num_bytes} bytes, got {len(data)}")
    except ValueError as error:
        raise ValueError(f"not a sample in safetensors format: {error}") from error
    return found.first, found.second


def _view(data: bytes, tensor: TensorRange) -> np.ndarray:
    count = (tensor.stop - tensor.start) // BFLOAT16.itemsize
    return np.frombuffer(data, BFLOAT16, count, tensor.start).reshape(tensor.shape)


class _Layout(NamedTuple):
    """Ranges of a record's tensors, and the bytes of the whole record."""

    first: TensorRange
    second: TensorRange
    num_bytes: int


@functools.lru_cache(maxsize=4_096)
def _read_header(header: bytes, axes: _Axes) -> _Layout:
    tensors, num_bytes = safetensors_header.parse(header)
    begin = LENGTH_BYTES + len(header)
    ranges = [
        _range(name, tensors.get(name), num_axes, begin) for name, num_axes in axes
    ]
    return _Layout(*ranges, num_bytes=begin + num_bytes)


def _range(
    name: str, entry: safetensors_header.Entry | None, num_axes: int, begin: int
) -> TensorRange:
    if entry is None or entry.dtype != "BF16" or len(entry.shape) != num_axes:
        found = "none" if entry is None else f"{entry.dtype} {list(entry.shape)}"
        raise ValueError(f"expected {name} in BF16 with {num_axes} axes, got {found}")
    return TensorRange(entry.shape, begin + entry.begin, begin + entry.end)
