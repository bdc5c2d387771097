"""Tests of reading datasets whose manifest or shards were damaged or forged."""

import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.balance.schedule import Lockstep
from jaxload.data.manifest import Entry, read_manifest, write_manifest
from jaxload.data.manifest_metadata import FILE_NAME, METADATA_KEY, read_generations
from jaxload.data.record import Record, encode_record
from jaxload.data.source import MicroBatchSource
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape
from tests.data.datasets import make_bucket, write_dataset

SHAPE = Shape(1, 2, 2)
NUM_ROWS = 6


def records() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [
        encode_record(Record(tokens=rng.standard_normal((1, 64)), text=np.ones((2, 8))))
        for _ in range(NUM_ROWS)
    ]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a dataset of two generations and three shards, with a masked row."""
    path = tmp_path_factory.mktemp("original") / "set"
    entries = [
        Entry(id=f"{i}", source=f"{i}.png", caption="words", text_tokens=2, shape=SHAPE)
        for i in range(NUM_ROWS)
    ]
    samples = zip(entries, records(), strict=True)
    write_dataset(path, samples, samples_per_shard=2, fingerprint={"codec": "x"})
    table = pq.read_table(path / FILE_NAME).replace_schema_metadata(None)
    _, shards = read_generations(path, (1, 2, 2))
    write_manifest(path, [table.slice(0, 4)], shards[:2], {"codec": "x"})
    earlier, _ = read_generations(path, (1, 2, 2))
    write_manifest(
        path, [table], shards, {"codec": "x"}, earlier=earlier, masked=((1, 2),)
    )
    return path


@pytest.fixture
def dataset(original: Path, tmp_path: Path) -> Path:
    """Copies the dataset; shards are links, and must not be written."""
    path = tmp_path / "set"
    path.mkdir()
    for file in original.iterdir():
        (path / file.name).hardlink_to(file)
    (path / FILE_NAME).unlink()
    return path


def read_everything(path: Path) -> list[bytes]:
    """Reads a dataset as a run does; returns the tokens of its samples."""
    manifest = read_manifest(path)
    manifest.digest()
    manifest.read_column("text_tokens").to_numpy()[manifest.used_rows]
    rows = manifest.rows_by_shape
    found = []
    for shape in rows:
        bucket = make_bucket(shape, 1, len(rows[shape]))
        schedule = Lockstep(buckets=(bucket,), seed=0, num_replicas=1, accumulate=1)
        source = MicroBatchSource(
            manifest,
            schedule,
            replicas=[0],
            num_at_once=1,
            num_steps=len(rows[shape]),
            num_text_tokens=2,
        )
        for i in range(len(source)):
            batch = source[i]
            assert batch is not None
            found.append(batch.arrays["tokens"].tobytes())
    return sorted(found)


def check(path: Path, expected: list[bytes] | None = None) -> None:
    """Asserts that a dataset is read, as expected, or refused in one line."""
    try:
        found = read_everything(path)
    except InputError as error:
        found = expected
        assert_names(path, str(error))
    assert expected is None or found == expected


def assert_names(path: Path, message: str) -> None:
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 1_000


def metadata_of(path: Path) -> dict[str, Any]:
    return json.loads(pq.read_schema(path / FILE_NAME).metadata[METADATA_KEY])


def rewrite(dataset: Path, original: Path, text: bytes) -> None:
    table = pq.read_table(original / FILE_NAME)
    table = table.replace_schema_metadata({METADATA_KEY: text})
    pq.write_table(table, dataset / FILE_NAME)


def test_the_dataset_is_read_as_it_was_written(original: Path):
    assert len(read_everything(original)) == NUM_ROWS - 1


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("generations",), []),
        (("generations", 0), {}),
        (("generations", 0, "num_shards"), 10**30),
        (("generations", 0, "num_shards"), -1),
        (("generations", 0, "num_shards"), 3.0),
        (("generations", 1, "num_shards"), 2),
        (("generations", 1, "masked"), [[1, 10**30]]),
        (("generations", 1, "masked"), [[-5, 2]]),
        (("generations", 1, "masked"), [[2, 1]]),
        (("generations", 1, "masked"), [[1]]),
        (("generations", 1, "masked"), 7),
        (("generations", 0, "masked"), [[0, 5]]),
        (("generations", 1, "num_updates"), "two"),
        (("generations", 1, "fingerprint"), []),
        (("shards", 0, "name"), "../set/shard-00000.array_record"),
        (("shards", 0, "name"), ""),
        (("shards", 0, "name"), ".."),
        (("shards", 0, "name"), "a\nb"),
        (("shards", 0, "name"), 3),
        (("shards", 0, "num_records"), -2),
        (("shards", 0, "num_records"), 10**15),
        (("shards", 0, "num_bytes"), "1"),
        (("shards",), None),
        (("format",), [3] * 1_000),
    ],
)
def test_absurd_metadata_are_refused(
    dataset: Path, original: Path, keys: tuple, value: Any
):
    metadata = metadata_of(original)
    *parents, last = keys
    place = metadata
    for key in parents:
        place = place[key]
    place[last] = value
    rewrite(dataset, original, json.dumps(metadata).encode())
    with pytest.raises(InputError, match=r"manifest.parquet: ") as error:
        read_everything(dataset)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1_000


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":' * 200_000, b"3", b"\xff"])
def test_metadata_that_are_no_such_json_are_refused(
    dataset: Path, original: Path, text: bytes
):
    rewrite(dataset, original, text)
    with pytest.raises(InputError, match="not a manifest of jaxload") as error:
        read_everything(dataset)
    assert "\n" not in str(error.value)


def test_rows_that_no_shard_can_hold_are_refused_in_little_memory(
    dataset: Path, original: Path
):
    """A shard of a terabyte of records would need a file of that size."""
    metadata = metadata_of(original)
    metadata["shards"][0] |= {"num_records": 10**12, "num_bytes": 10**13}
    rewrite(dataset, original, json.dumps(metadata).encode())
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"6 rows for 1000000000004 records"):
            read_everything(dataset)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("value", [0, -1, 1 << 20, 2**31 - 1, None])
def test_sizes_of_no_latent_are_refused(dataset: Path, original: Path, value):
    table = pq.read_table(original / FILE_NAME)
    position = table.schema.get_field_index("height")
    field = table.schema.field(position)
    column = pa.array([*table["height"].to_pylist()[:-1], value], field.type)
    pq.write_table(table.set_column(position, field, [column]), dataset / FILE_NAME)
    with pytest.raises(InputError, match=r"manifest.parquet: not a manifest"):
        read_everything(dataset)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 8),
    st.sampled_from([10**6, 2**31, 2**63, 10**30, 0.5, float("inf"), "", "x", "../a"]),
    st.just([]),
    st.just({}),
    st.lists(st.lists(st.integers(-1, 7), min_size=2, max_size=2), max_size=2),
)


@pytest.mark.fuzz
@given(data=st.data())
def test_any_metadata_are_read_or_refused_in_one_line(
    dataset: Path, original: Path, data: st.DataObject
):
    metadata = copy.deepcopy(metadata_of(original))
    for _ in range(data.draw(st.integers(1, 2))):
        place: Any = metadata
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], (dict, list)) or data.draw(st.booleans()):
                place[key] = data.draw(VALUES)
                break
            place = place[key]
    rewrite(dataset, original, json.dumps(metadata).encode())
    check(dataset)


def mutate(data: st.DataObject, content: bytes) -> bytes:
    """Flips, inserts or removes bytes at some places, or cuts the end off."""
    mutated = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(mutated)))
        mutated[at : at + data.draw(st.integers(0, 4))] = data.draw(
            st.binary(max_size=4)
        )
    return bytes(mutated[: data.draw(st.none() | st.integers(0, len(mutated)))])


@pytest.mark.fuzz
@given(data=st.data())
def test_a_manifest_with_any_damage_is_read_or_refused_in_one_line(
    dataset: Path, original: Path, data: st.DataObject
):
    content = mutate(data, (original / FILE_NAME).read_bytes())
    (dataset / FILE_NAME).write_bytes(content)
    check(dataset)


@pytest.mark.fuzz
@given(data=st.data())
def test_no_damage_of_a_shard_is_read_as_a_record(
    dataset: Path, original: Path, data: st.DataObject
):
    expected = read_everything(original)
    (dataset / FILE_NAME).write_bytes((original / FILE_NAME).read_bytes())
    shard = dataset / "shard-00001.array_record"
    content = bytearray((original / shard.name).read_bytes())
    # Only the first bytes differ from zero.
    at = data.draw(st.integers(0, min(len(content) - 1, 4_096)))
    content[at] ^= data.draw(st.integers(1, 255))
    shard.unlink()  # A link to the original.
    shard.write_bytes(content)
    check(dataset, expected)
