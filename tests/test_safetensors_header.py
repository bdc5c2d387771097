"""Tests of jaxload.safetensors_header, against the safetensors library."""

import json
import math
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from jaxload import safetensors_header
from jaxload.safetensors_header import LENGTH_BYTES, Entry, parse

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I64": 8}


def entry(shape: list[int], begin: int, dtype: str = "F32") -> dict[str, Any]:
    end = begin + math.prod(shape) * BYTES[dtype]
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@st.composite
def headers(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a valid header of a few tensors, in any order."""
    shapes = draw(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4))
    content, begin = {}, 0
    for i, shape in enumerate(shapes):
        dtype = draw(st.sampled_from(sorted(BYTES)))
        content[f"block.{i}"] = entry(shape, begin, dtype)
        begin = content[f"block.{i}"]["data_offsets"][1]
    if draw(st.booleans()):
        content["__metadata__"] = {"format": "pt"}
    order = draw(st.permutations(list(content)))
    return {name: content[name] for name in order}


ODD = st.one_of(
    st.sampled_from(
        [True, None, -1, 0, 1.0, 1e300, 2**31, 2**32, 2**63, 2**64, 10**400, "4", ""]
    ),
    st.just([]),
    st.just({}),
    st.just([[[]]]),
    st.sampled_from(sorted(BYTES)),
)


def places(content: Any, path: tuple = ()) -> list[tuple]:
    """Returns the paths of all values inside a JSON value."""
    children: list[tuple] = []
    if isinstance(content, dict):
        children = list(content.items())
    elif isinstance(content, list):
        children = list(enumerate(content))
    inner = [p for key, child in children for p in places(child, (*path, key))]
    return [(*path, key) for key, _ in children] + inner


@st.composite
def damaged_headers(draw: st.DrawFn) -> bytes:
    """Draws a header of which some values are replaced or removed."""
    content = draw(headers())
    for _ in range(draw(st.integers(1, 2))):
        paths = places(content)
        if not paths:
            break
        *outer, last = draw(st.sampled_from(paths))
        parent = content
        for key in outer:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = draw(ODD)
        else:
            del parent[last]
    return json.dumps(content).encode()


def theirs(header: bytes, data: bytes) -> dict[str, tuple] | None:
    """Returns dtype, shape and bytes of each tensor by the library, None if refused."""
    content = len(header).to_bytes(LENGTH_BYTES, "little") + header + data
    try:
        tensors = safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return None
    return {
        name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in tensors
    }


def ours(header: bytes, data: bytes) -> dict[str, tuple]:
    found = parse(header)
    assert found.num_bytes == len(data)
    return {
        name: (t.dtype, t.shape, data[t.begin : t.end])
        for name, t in found.tensors.items()
    }


def size_of(header: bytes) -> int | None:
    """Returns the bytes of all tensors; None if refused, which takes a short line."""
    try:
        return parse(header).num_bytes
    except ValueError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 1_500
    return None


def test_a_header_is_parsed():
    header = {"b": entry([2, 3], 4), "__metadata__": {"x": "y"}, "a": entry([], 0)}
    found = parse(json.dumps(header).encode())
    assert found.tensors == {
        "a": Entry("F32", (), 0, 4),
        "b": Entry("F32", (2, 3), 4, 28),
    }
    assert found.num_bytes == 28


@given(headers())
def test_valid_headers_are_read_as_the_library_does(content: dict[str, Any]):
    header = json.dumps(content).encode()
    data = bytes(i % 251 for i in range(parse(header).num_bytes))
    assert ours(header, data) == theirs(header, data)


@given(damaged_headers())
def test_nothing_passes_that_the_library_refuses(header: bytes):
    num_bytes = size_of(header)
    if num_bytes is not None and num_bytes < 1_000:
        data = bytes(num_bytes)
        assert ours(header, data) == theirs(header, data)


@given(st.binary(max_size=40))
def test_random_bytes_are_refused_in_one_line(header: bytes):
    num_bytes = size_of(header)
    assert num_bytes is None or theirs(header, bytes(num_bytes)) is not None


def one(shape: str = "[1]", offsets: str = "[0, 4]", dtype: str = '"F32"') -> bytes:
    fields = f'"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}'
    return f'{{"a": {{{fields}}}}}'.encode()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 200_000, "nested too deep"),
        (one(shape="[" * 200_000), "nested too deep"),
        (one(shape=f"[{2**32}, {2**32}]", offsets="[0, 0]"), "at most .* elements"),
        (one(shape=f"[0, {2**62}]", offsets="[0, 0]"), "at most .* elements"),
        (one(shape="[1, NaN]"), "got the number NaN"),
        (one(shape="[1, 1e999]"), "expected dtype, shape and data_offsets"),
        (one(shape=f"[{10**400}]"), "expected dtype, shape and data_offsets"),
        (one(shape=f"[{'9' * 5000}]"), "Exceeds the limit|expected"),
        (one(shape="[" + "1, " * 40 + "1]"), "expected dtype, shape and data_offsets"),
        (one(shape="[true]"), "expected dtype, shape and data_offsets"),
        (one(offsets="[4, 8]"), "expected a to begin at byte 0"),
        (one(offsets="[0, 4, 8]"), "expected dtype, shape and data_offsets"),
        (one(dtype='"F128"'), "a dtype of safetensors for a, got 'F128'"),
        (b'{"a": 1, "a": 2}', "every name once"),
        (b'{"a\\n": 1}', "printable names"),
        (b'{"' + b"a" * 2_000 + b'": 1}', "printable names of at most 1000"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "expected JSON"),
        (b" " * (safetensors_header.MAX_BYTES + 1), "expected at most 25000000 bytes"),
    ],
)
def test_an_invalid_header_is_refused(header: bytes, message: str):
    with pytest.raises(ValueError, match=message) as error:
        parse(header)
    assert len(str(error.value)) < 1_500
    assert "\n" not in str(error.value)
