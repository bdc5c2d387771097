"""Synthetic datasets: random latents, and text embeddings of random length."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import safetensors
from array_record.python.array_record_module import ArrayRecordWriter

from jaxload.balance.bucket import Bucket
from jaxload.balance.form import Grid
from jaxload.balance.program import Program
from jaxload.balance.sample_class import SampleClass
from jaxload.balance.schedule import Lockstep
from jaxload.data.form_rows import shape_counts
from jaxload.data.manifest import (
    Entry,
    Manifest,
    entry_table,
    read_manifest,
    write_manifest,
)
from jaxload.data.record import Record, encode_record
from jaxload.data.shard import describe_shard
from jaxload.data.source import Arrays, open_records
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

CHANNELS = 16
NUM_TEXT_TOKENS = 40
_MIN_TEXT_TOKENS = 4
_SHARDS = 4
WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Dataset whose samples have about the same number of bytes."""

    name: str
    shapes: tuple[Shape, ...]
    text_width: int
    batch_bytes: int
    """Upper bound on the bytes of a micro-batch's latents."""

    num_samples: int
    """Number of samples per shape."""

    num_batches: int
    """Number of micro-batches per round."""

    def batch(self, shape: Shape) -> int:
        """Samples of a micro-batch."""
        return max(1, self.batch_bytes // latent_bytes(shape))

    def fewer(self, factor: int) -> "Scale":
        """Returns a scale with fewer samples and micro-batches, for quick runs."""
        least = max(self.batch(shape) for shape in self.shapes)
        return dataclasses.replace(
            self,
            num_samples=max(least, self.num_samples // factor),
            num_batches=max(4, self.num_batches // factor),
        )


def latent_bytes(shape: Shape) -> int:
    """Returns the bytes of a latent in bfloat16."""
    return 2 * CHANNELS * shape.frames * shape.height * shape.width


def _shapes(*texts: str) -> tuple[Shape, ...]:
    return tuple(Shape.parse(text, DEFAULT) for text in texts)


SCALES = (
    Scale(
        name="demo",
        # The shapes of configs/demo.py.
        shapes=_shapes(
            *("1x8x8", "5x8x8", "1x8x12", "3x8x8", "5x8x12", "1x12x8"),
            *("9x8x8", "5x12x8", "9x8x12", "13x8x8", "2x6x12"),
        ),
        text_width=64,
        batch_bytes=300_000,
        num_samples=200,
        num_batches=200,
    ),
    Scale(
        name="small clips",
        shapes=_shapes("5x24x32", "5x32x24", "3x32x40", "7x28x28"),
        text_width=512,
        batch_bytes=4_000_000,
        num_samples=250,
        num_batches=60,
    ),
    Scale(
        name="image 480p",
        shapes=_shapes("1x60x104", "1x104x60", "1x80x80"),
        text_width=512,
        batch_bytes=8_000_000,
        num_samples=300,
        num_batches=40,
    ),
    Scale(
        name="clip 480p, 17 frames",
        shapes=_shapes("5x60x104", "5x104x60", "5x80x80"),
        text_width=512,
        batch_bytes=10_300_000,
        num_samples=60,
        num_batches=40,
    ),
    Scale(
        name="clip 480p, 81 frames",
        shapes=_shapes("21x60x104", "21x104x60"),
        text_width=512,
        batch_bytes=13_000_000,
        num_samples=24,
        num_batches=30,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset on disk, and the order in which it is read."""

    scale: Scale
    manifest: Manifest
    files: Path
    """Directory with the same records, each in its own safetensors file."""

    schedule: Lockstep

    def rows(self, step: int) -> np.ndarray:
        """Returns the rows of a step, which has one micro-batch."""
        (micro_batch,) = self.schedule.micro_batches(step, replica=0)
        form = self.schedule.buckets[micro_batch.bucket].form
        assert isinstance(form, Grid)
        return self.manifest.rows_by_shape[form.shape][micro_batch.members]

    @property
    def record_bytes(self) -> int:
        """Mean size of a record in bytes."""
        shards = self.manifest.shards
        return sum(shard.num_bytes for shard in shards) // len(self.manifest)


def write_dataset(
    scale: Scale, directory: Path, advance: Callable[[int], None]
) -> Dataset:
    """Writes shards, manifest, and each record as a file; `advance` counts records."""
    files = directory / "files"
    files.mkdir(parents=True)
    rng = np.random.default_rng(0)
    shapes = [shape for shape in scale.shapes for _ in range(scale.num_samples)]
    order = rng.permutation(len(shapes))
    entries, shards = [], []
    for rows in np.array_split(np.arange(len(shapes)), _SHARDS):
        path = directory / f"shard-{len(shards):05d}.array_record"
        writer = ArrayRecordWriter(str(path), WRITER_OPTIONS)
        for row in rows.tolist():
            shape = shapes[order[row]]
            record = draw_record(rng, shape, scale.text_width)
            content = encode_record(record)
            writer.write(content)
            (files / f"{row}.safetensors").write_bytes(content)
            entries.append(entry_of(row, shape, record))
            advance(1)
        writer.close()
        shards.append(describe_shard(path, len(rows)))
    write_manifest(directory, [entry_table(entries)], shards, {})
    manifest = read_manifest(directory)
    return Dataset(
        scale=scale,
        manifest=manifest,
        files=files,
        schedule=make_schedule(manifest, scale.batch),
    )


def draw_record(
    rng: np.random.Generator,
    shape: Shape,
    text_width: int,
    max_text_tokens: int = NUM_TEXT_TOKENS,
) -> Record:
    """Draws a sample of Gaussian noise."""
    size = (shape.tokens, math.prod(shape.geometry.patch) * CHANNELS)
    num_tokens = int(rng.integers(_MIN_TEXT_TOKENS, max_text_tokens + 1))
    return Record(
        tokens=rng.standard_normal(size, np.float32),
        text=rng.standard_normal((num_tokens, text_width), np.float32),
    )


def entry_of(row: int, shape: Shape, record: Record) -> Entry:
    """Returns the manifest entry of a sample."""
    return Entry(
        id=str(row),
        source=f"{row}.mp4",
        caption="noise",
        text_tokens=len(record.text),
        shape=shape,
    )


def make_schedule(manifest: Manifest, batch: Callable[[Shape], int]) -> Lockstep:
    """Returns a schedule with a bucket per shape, and one micro-batch per step."""
    buckets = [
        Bucket(
            program=Program(form=Grid.of(shape), batch=batch(shape)),
            num_samples=count,
            lengths=SampleClass.of(Grid.of(shape), {shape: count}).lengths,
            cost=1.0,
        )
        for shape, count in shape_counts(manifest).items()
    ]
    return Lockstep(buckets=tuple(buckets), seed=0, num_replicas=1, accumulate=1)


def decoded_batches(dataset: Dataset, count: int) -> Iterator[Arrays]:
    """Yields the first micro-batches, decoded record by record with safetensors.

    Arrays hold the bits of bfloat16 values as uint16.
    """
    records = open_records(dataset.manifest)
    for step in range(count):
        rows = dataset.rows(step)
        rows_of_tokens = []
        text = np.zeros(
            (len(rows), NUM_TEXT_TOKENS, dataset.scale.text_width), np.uint16
        )
        for i, row in enumerate(rows.tolist()):
            tensors = dict(safetensors.deserialize(records[row]))
            rows_of_tokens.append(_bits(tensors["tokens"]))
            words = _bits(tensors["text"])
            text[i, : len(words)] = words
        yield {"tokens": np.stack(rows_of_tokens), "text": text, "id": rows}


def _bits(tensor: dict) -> np.ndarray:
    assert tensor["dtype"] == "BF16"
    return np.frombuffer(tensor["data"], np.uint16).reshape(tensor["shape"])


def check_batch(found: Arrays, expected: Arrays, what: str) -> None:
    """Asserts that a micro-batch equals the expected one, bit by bit."""
    for name, array in expected.items():
        if name not in found:
            raise AssertionError(f"{what}: no {name!r} in the micro-batch")
        bits = np.asarray(found[name])
        if name != "id":
            bits = bits.view(np.uint16)
        if bits.shape != array.shape or not (bits == array).all():
            raise AssertionError(f"{what}: {name!r} differs from the dataset's records")
