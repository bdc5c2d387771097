"""Tests of jaxload.data.record."""

import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from jaxload.data.record import (
    Record,
    decode_latent_record,
    decode_record,
    encode_record,
)


def test_round_trip_in_bfloat16():
    rng = np.random.default_rng(0)
    record = Record(
        tokens=rng.standard_normal((8, 64)), text=rng.standard_normal((3, 8))
    )
    decoded = decode_record(encode_record(record))
    np.testing.assert_array_equal(
        decoded.tokens, record.tokens.astype(ml_dtypes.bfloat16)
    )
    np.testing.assert_array_equal(decoded.text, record.text.astype(ml_dtypes.bfloat16))


def test_text_is_stored_at_its_true_length():
    record = Record(tokens=np.zeros((1, 64)), text=np.zeros((0, 8)))
    assert decode_record(encode_record(record)).text.shape == (0, 8)


@pytest.mark.parametrize(
    "data", [b"", b"garbage that is long enough", save({"other": np.zeros(3)})]
)
def test_bytes_that_are_no_sample_are_an_error(data):
    with pytest.raises(ValueError, match="not a sample in safetensors format"):
        decode_record(data)


def test_records_with_latents_are_read_too():
    rng = np.random.default_rng(0)
    arrays = {
        "latent": rng.standard_normal((2, 4, 4, 16)).astype(ml_dtypes.bfloat16),
        "text": rng.standard_normal((3, 8)).astype(ml_dtypes.bfloat16),
    }
    found = decode_latent_record(save(arrays))
    np.testing.assert_array_equal(found.latent, arrays["latent"])
    np.testing.assert_array_equal(found.text, arrays["text"])
    for decode, data in (
        (decode_record, save(arrays)),
        (decode_latent_record, example()),
    ):
        with pytest.raises(
            ValueError, match=r"expected (tokens|latent) in BF16 .*none"
        ):
            decode(data)


def example() -> bytes:
    rng = np.random.default_rng(0)
    tokens, text = rng.standard_normal((8, 64)), rng.standard_normal((3, 8))
    return encode_record(Record(tokens=tokens, text=text))


def test_reads_what_the_library_reads():
    data = example()
    record = decode_record(data)
    for name, tensor in safetensors.deserialize(data):
        found = getattr(record, name)
        assert list(found.shape) == tensor["shape"]
        assert found.tobytes() == bytes(tensor["data"])


def test_nothing_is_copied():
    data = example()
    whole, record = np.frombuffer(data, np.uint8), decode_record(data)
    assert np.shares_memory(record.tokens, whole)
    assert np.shares_memory(record.text, whole)


def test_a_record_cut_anywhere_is_an_error():
    data = example()
    for length in range(0, len(data), 7):
        with pytest.raises(ValueError, match="not a sample in safetensors format"):
            decode_record(data[:length])


@pytest.mark.parametrize(
    ("old", "new"), [(b"[8,64]", b"[8,65]"), (b'"BF16"', b'"F16" ')]
)
def test_a_header_that_makes_no_sense_is_an_error(old: bytes, new: bytes):
    data = example()
    assert old in data
    with pytest.raises(ValueError, match="not a sample in safetensors format"):
        decode_record(data.replace(old, new, 1))


# --- Untrusted bytes ---


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def described(tokens: list, text: list, num_bytes: int = 0) -> bytes:
    """Returns a record without data whose header claims shapes and bytes."""
    header = {
        "tokens": {"dtype": "BF16", "shape": tokens, "data_offsets": [0, num_bytes]},
        "text": {"dtype": "BF16", "shape": text, "data_offsets": [num_bytes] * 2},
    }
    return with_header(json.dumps(header).encode())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(with_header(b"[" * 200_000), id="lists"),
        pytest.param(with_header(b'{"a":' * 200_000), id="objects"),
        pytest.param(with_header(b"[" * 4_000), id="within the limit of bytes"),
        pytest.param((2**64 - 1).to_bytes(8, "little") + b"{}", id="length"),
        pytest.param(described([2**32, 2**32], [0, 8]), id="2**64 elements"),
        pytest.param(described([0, 10**30], [0, 8]), id="too long an axis"),
        pytest.param(described([0, 2**62], [0, 8]), id="empty, overflows"),
        pytest.param(described([-1, -1], [0, 8], 2), id="negative axes"),
        pytest.param(described([1.0, 1], [0, 8], 2), id="not an integer"),
        pytest.param(described([True, 1], [0, 8], 2), id="not a number"),
        pytest.param(described([1, 1, 1], [0, 8], 2), id="three axes"),
        pytest.param(described([1, 1], [0], 2), id="text of one axis"),
        pytest.param(described([10**12, 10**6], [0, 8], 2 * 10**18), id="huge"),
    ],
)
def test_what_claims_too_much_is_refused_in_little_memory(data: bytes):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a sample in safetensors") as error:
            decode_record(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.fuzz
@given(data=st.data())
def test_any_bytes_are_a_record_or_one_short_line(data: st.DataObject):
    record = bytearray(example())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(record)))
        cut = data.draw(st.integers(0, 8))
        record[at : at + cut] = data.draw(st.binary(max_size=8))
    check(bytes(record))


SIZES = st.one_of(st.integers(-2, 5), st.sampled_from([2**31, 2**62, 10**30, 0.5, "1"]))


@pytest.mark.fuzz
@given(
    shapes=st.tuples(st.lists(SIZES, max_size=5), st.lists(SIZES, max_size=3)),
    offsets=st.lists(SIZES | st.sampled_from([10, 20, 30]), max_size=4),
    data=st.binary(max_size=40),
)
def test_any_header_is_a_record_or_one_short_line(shapes, offsets, data: bytes):
    header = {
        "tokens": {"dtype": "BF16", "shape": shapes[0], "data_offsets": offsets[:2]},
        "text": {"dtype": "BF16", "shape": shapes[1], "data_offsets": offsets[2:]},
    }
    check(with_header(json.dumps(header).encode(), data))


def check(data: bytes) -> None:
    """Asserts that bytes are a record that the library reads too, or refused."""
    try:
        record = decode_record(data)
    except ValueError as error:
        message = str(error)
        assert message.startswith("not a sample in safetensors format: ")
        assert "\n" not in message
        assert len(message) < 500
    else:
        tensors = dict(safetensors.deserialize(data))
        for name, tensor in tensors.items():
            if name in Record._fields:
                assert getattr(record, name).tobytes() == bytes(tensor["data"])
