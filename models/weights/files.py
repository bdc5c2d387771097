"""Reads headers and rows of safetensors files, and writes files as a stream.

A file holds the length of its header in 8 bytes, the header in JSON, then the tensors.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxload import safetensors_header
from jaxload.errors import InputError
from jaxload.safetensors_header import LENGTH_BYTES, MAX_BYTES

DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Supported dtypes, by their names in headers."""

_STRIP = 256
_DOWNLOAD = "download or copy it again"


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Position of the tensor's first byte in the file."""

    def read_rows(self, first: int, count: int) -> np.ndarray:
        """Reads `count` rows of the first axis, from row `first`, into a new array.

        The file is not memory-mapped, because its pages would stay resident.
        """
        rows = np.empty((count, *self.shape[1:]), DTYPES[self.dtype])
        content = rows.reshape(-1).view(np.uint8).data
        done = 0
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset + first * (rows.nbytes // max(count, 1)))
            while done < len(content):
                size = file.readinto(content[done:])
                if not size:
                    raise InputError(f"{self.path}: ends too early; {_DOWNLOAD}")
                done += size
        return rows


def read_header(path: Path) -> dict[str, Stored]:
    """Reads the names, dtypes, shapes and offsets of the tensors in a file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > min(size - LENGTH_BYTES, MAX_BYTES):
                raise InputError(
                    f"{path}: expected a safetensors file, got {size} bytes with a "
                    f"header of {length} bytes; {_DOWNLOAD}"
                )
            header = safetensors_header.parse(file.read(length))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: invalid safetensors header: {error}; {_DOWNLOAD}"
        ) from error
    start = LENGTH_BYTES + length
    if size != start + header.num_bytes:
        raise InputError(
            f"{path}: expected {start + header.num_bytes} bytes, since its tensors end "
            f"there, got {size}; {_DOWNLOAD}"
        )
    return {
        name: Stored(path, entry.dtype, entry.shape, start + entry.begin)
        for name, entry in header.tensors.items()
    }


@dataclasses.dataclass(frozen=True)
class Described:
    """Name, dtype and shape of a tensor to write."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.dtype.itemsize * int(np.prod(self.shape))


def write(
    path: Path, tensors: Iterable[Described], chunks: Iterable[np.ndarray]
) -> None:
    """Writes a file; `chunks` yields the content of all tensors, in order.

    Each chunk is requested after the previous one was written, so that only one is in
    memory.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    names = {dtype: name for name, dtype in DTYPES.items()}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.num_bytes],
        }
        offset += tensor.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # Tensors begin at a multiple of 8.
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for chunk in chunks:
            content = np.empty(chunk.shape, chunk.dtype)
            copy(chunk, content)
            file.write(content.reshape(-1).view(np.uint8).data)
            del chunk, content  # Frees both before the next chunk is made.
        assert file.tell() == LENGTH_BYTES + len(text) + offset


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies an array into another, and converts it to the dtype of the target.

    Copies in strips, which is four times as fast for a transposed matrix: each cache
    line stays in the cache until all of its elements have been read.
    """
    for start in range(0, source.shape[-1], _STRIP):
        strip = (..., slice(start, start + _STRIP))
        target[strip] = source[strip]
