"""Converts the records of a dataset to tokens of another patch, shard by shard."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from jaxload.data.manifest import Manifest
from jaxload.data.record import (
    Record,
    decode_latent_record,
    decode_record,
    encode_record,
)
from jaxload.data.shard import Shard, describe_shard
from jaxload.data.source import open_records
from jaxload.errors import InputError
from jaxload.files import replaced
from jaxload.media.shard_writer import ShardWriter
from jaxload.shapes.geometry import Geometry, Sizes
from jaxload.shapes.shape import Shape
from jaxload.shapes.token_order import to_latent, to_tokens


class ConvertedRecords:
    """Records of a manifest of any format, as tokens of a patch.

    Args:
        manifest: Manifest of the dataset to convert.
        patch: Patch of its tokens; None if its records hold latents.
        sizes: Latent frames, height and width of each row, [rows, 3].
        to: Geometry of the new records.
    """

    def __init__(
        self, manifest: Manifest, patch: Sizes | None, sizes: np.ndarray, to: Geometry
    ):
        self._manifest, self._patch, self._sizes, self._to = manifest, patch, sizes, to
        self._records = open_records(manifest)

    def write_shards(
        self, out: Path, on_records: Callable[[int], None]
    ) -> Iterator[Shard]:
        """Writes and yields the new shards, except those that `out` has already."""
        stop = 0
        for shard in self._manifest.shards:
            start, stop = stop, stop + shard.num_records
            path = out / shard.name
            if not path.exists():
                with replaced(path) as partial:
                    writer = ShardWriter(partial)
                    for row in range(start, stop):
                        writer.write(self._convert(row))
                        on_records(1)
                    writer.close()
            yield describe_shard(path, shard.num_records)

    def _convert(self, row: int) -> bytes:
        try:
            latent, text = self._read(self._records[row], row)
        except (RuntimeError, ValueError, IndexError) as error:
            raise InputError(
                f"{self._manifest.locate(row)}: cannot be read ({error}); restore the "
                "shard from a copy, or prepare the media into another --out"
            ) from error
        tokens = to_tokens(latent, self._to.patch)
        return encode_record(Record(tokens=tokens, text=text))

    def _read(self, data: bytes, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the latent and the text of a record, after checking their shapes."""
        frames, height, width = self._sizes[row].tolist()
        if self._patch is None:
            latent, text = decode_latent_record(data)
            if latent.shape[:3] != (frames, height, width):
                expected = f"{frames}x{height}x{width}"
                found = "x".join(map(str, latent.shape[:3]))
                raise ValueError(f"a latent of {found}, expected {expected}")
            return latent, text
        tokens, text = decode_record(data)
        geometry = Geometry(self._to.strides, self._patch)
        shape = Shape(frames, height, width, geometry)
        if len(tokens) != shape.tokens:
            raise ValueError(f"{len(tokens)} tokens, expected {shape.tokens}")
        return to_latent(tokens, shape.token_grid, self._patch), text
