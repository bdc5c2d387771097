"""The record codec: one sample as safetensors bytes, with shapes in the header."""

import dataclasses
import functools
import json
import math

import ml_dtypes
import numpy as np
from safetensors.numpy import save

_DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F32": np.dtype(np.float32)}
_LENGTH_BYTES = 8  # Safetensors begin with the length of their header.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is stored of a sample: its latent, and its text at its true length."""

    latent: np.ndarray
    """`[F, H, W, C]`"""

    text: np.ndarray
    """`[T, E]`"""


def encode_record(record: Record) -> bytes:
    """Writes a record in bfloat16."""
    tensors = {
        "latent": record.latent.astype(ml_dtypes.bfloat16),
        "text": record.text.astype(ml_dtypes.bfloat16),
    }
    return save(tensors)


def decode_record(data: bytes) -> Record:
    """Reads a record; raises `ValueError` on bytes that are none.

    Its arrays lie in `data` itself. The safetensors library would copy them first, and
    read the same few headers anew for each record.
    """
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        latent, text = _read_header(data[_LENGTH_BYTES:begin])
        return Record(latent=latent.view(data, begin), text=text.view(data, begin))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a sample in safetensors format: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class _Tensor:
    """Where a tensor lies behind the header."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    count: int

    def view(self, data: bytes, begin: int) -> np.ndarray:
        return np.frombuffer(data, self.dtype, self.count, begin + self.offset).reshape(
            self.shape
        )


@functools.lru_cache(maxsize=4_096)
def _read_header(header: bytes) -> tuple[_Tensor, _Tensor]:
    fields = json.loads(header)
    return _read_field(fields["latent"]), _read_field(fields["text"])


def _read_field(field: dict) -> _Tensor:
    dtype, shape = _DTYPES[field["dtype"]], tuple(field["shape"])
    start, stop = field["data_offsets"]
    count = math.prod(shape)
    if stop - start != count * dtype.itemsize or start < 0:
        raise ValueError(f"{stop - start} bytes for {shape} of {dtype}")
    return _Tensor(dtype, shape, start, count)
