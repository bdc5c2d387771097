"""Encodes and decodes records: one sample each, as safetensors bytes."""

import functools
import json
import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_LENGTH_BYTES = 8  # Safetensors data begins with the length of its header.


class Record(NamedTuple):
    """Stored arrays of a sample: its latent, and its text embedding without padding."""

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
        "latent": record.latent.astype(BFLOAT16),
        "text": record.text.astype(BFLOAT16),
    }
    return save(tensors)


def decode_record(data: bytes) -> Record:
    """Decodes a record; raises `ValueError` if the bytes are not a record.

    The arrays are views of `data`.
    """
    latent, text = locate(data)
    return Record(_view(data, latent), _view(data, text))


def locate(data: bytes) -> tuple[TensorRange, TensorRange]:
    """Locates latent and text; raises `ValueError` if the bytes are not a record.

    The safetensors library is not used, because it copies both tensors and parses the
    header of every record, although a dataset has few distinct headers.
    """
    stop = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        latent, text = _read_header(data[_LENGTH_BYTES:stop])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a sample in safetensors format: {error}") from error
    if len(data) < latent.stop or len(data) < text.stop:
        raise ValueError(f"not a sample in safetensors format: only {len(data)} bytes")
    return latent, text


def _view(data: bytes, tensor: TensorRange) -> np.ndarray:
    count = (tensor.stop - tensor.start) // BFLOAT16.itemsize
    return np.frombuffer(data, BFLOAT16, count, tensor.start).reshape(tensor.shape)


@functools.lru_cache(maxsize=4_096)
def _read_header(header: bytes) -> tuple[TensorRange, TensorRange]:
    fields = json.loads(header)
    begin = _LENGTH_BYTES + len(header)
    return _read_field(fields["latent"], begin), _read_field(fields["text"], begin)


def _read_field(field: dict[str, Any], begin: int) -> TensorRange:
    shape = tuple(field["shape"])
    start, stop = field["data_offsets"]
    num_bytes = math.prod(shape) * BFLOAT16.itemsize
    if field["dtype"] != "BF16" or stop - start != num_bytes or start < 0:
        raise ValueError(f"{stop - start} bytes for {shape} of {field['dtype']}")
    return TensorRange(shape, begin + start, begin + stop)
