"""The record codec: one sample as safetensors bytes, with shapes in the header."""

import dataclasses

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save

_DTYPES = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}


@dataclasses.dataclass(frozen=True, kw_only=True)
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
    """Reads a record; raises `ValueError` on bytes that are none."""
    try:
        tensors = {
            name: np.frombuffer(view["data"], dtype=_DTYPES[view["dtype"]]).reshape(
                view["shape"]
            )
            for name, view in safetensors.deserialize(data)
        }
        return Record(latent=tensors["latent"], text=tensors["text"])
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"not a sample in safetensors format: {error}") from error
