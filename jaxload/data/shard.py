"""Shards of a dataset: ArrayRecord files, and what a manifest expects of them."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxload.errors import InputError

_BLOCK_BYTES = 65_536  # ArrayRecord pads its files to blocks of this size.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """Expected properties of one ArrayRecord file."""

    name: str
    num_records: int
    num_bytes: int
    digest: str
    """Digest of the first and the last block; the last has the offsets of records."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "Shard":
        """Builds a shard from what JSON holds; raises ValueError if it is invalid."""
        shard = cls(**fields)
        texts, numbers = (
            (shard.name, shard.digest),
            (shard.num_records, shard.num_bytes),
        )
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a shard without name or digest")
        if not all(type(number) is int for number in numbers):
            raise ValueError("a shard without numbers of records and bytes")
        # Names with folders could lead out of the dataset. A record has several bytes,
        # so the file's size, which is checked, bounds the rows that a manifest claims.
        name = shard.name
        is_plain = Path(name).name == name != ".." and name.isprintable() and name
        if not is_plain or not 0 <= shard.num_records <= shard.num_bytes:
            raise ValueError(f"{shard.num_records} records in shard {shard.name!r:.80}")
        return shard


def describe_shard(path: Path, num_records: int) -> Shard:
    """Describes a shard that was just written, for `check_shard` to compare with."""
    return Shard(
        name=path.name,
        num_records=num_records,
        num_bytes=path.stat().st_size,
        digest=_digest(path),
    )


def check_shard(directory: Path, shard: Shard) -> None:
    """Raises InputError if a shard is missing or differs from its description."""
    path = directory / shard.name
    again = "copy the shard again or prepare the dataset again"
    if not path.exists():
        raise InputError(
            f"{path}: the manifest names this shard, but it does not exist; {again}"
        )
    num_bytes = path.stat().st_size
    if num_bytes != shard.num_bytes:
        found = "truncated" if num_bytes < shard.num_bytes else "another file"
        raise InputError(
            f"{path}: expected {shard.num_bytes} bytes by the manifest, got "
            f"{num_bytes}: the shard is {found}; {again}"
        )
    digest = _digest(path)
    if digest != shard.digest:
        raise InputError(
            f"{path}: expected digest {shard.digest} by the manifest, got "
            f"{digest}: the shard is another file, or damaged; {again}"
        )


def _digest(path: Path) -> str:
    """Hashes the first and last block of a shard, to avoid reading terabytes."""
    with path.open("rb") as shard:
        content = shard.read(_BLOCK_BYTES)
        shard.seek(max(0, path.stat().st_size - _BLOCK_BYTES))
        return hashlib.sha256(content + shard.read()).hexdigest()[:16]
