"""Tests of jaxload.data.record."""

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save

from jaxload.data.record import Record, decode_record, encode_record


def test_round_trip_in_bfloat16():
    rng = np.random.default_rng(0)
    record = Record(
        latent=rng.standard_normal((2, 4, 4, 16)), text=rng.standard_normal((3, 8))
    )
    decoded = decode_record(encode_record(record))
    np.testing.assert_array_equal(
        decoded.latent, record.latent.astype(ml_dtypes.bfloat16)
    )
    np.testing.assert_array_equal(decoded.text, record.text.astype(ml_dtypes.bfloat16))


def test_text_is_stored_at_its_true_length():
    record = Record(latent=np.zeros((1, 2, 2, 16)), text=np.zeros((0, 8)))
    assert decode_record(encode_record(record)).text.shape == (0, 8)


@pytest.mark.parametrize(
    "data", [b"", b"garbage that is long enough", save({"other": np.zeros(3)})]
)
def test_bytes_that_are_no_sample_are_an_error(data):
    with pytest.raises(ValueError, match="not a sample in safetensors format"):
        decode_record(data)


def example() -> bytes:
    rng = np.random.default_rng(0)
    latent, text = rng.standard_normal((2, 4, 4, 16)), rng.standard_normal((3, 8))
    return encode_record(Record(latent=latent, text=text))


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
    assert np.shares_memory(record.latent, whole)
    assert np.shares_memory(record.text, whole)


def test_a_record_cut_anywhere_is_an_error():
    data = example()
    for length in range(0, len(data), 7):
        with pytest.raises(ValueError, match="not a sample in safetensors format"):
            decode_record(data[:length])


@pytest.mark.parametrize(
    ("old", "new"), [(b"[2,4,4,16]", b"[2,4,4,17]"), (b'"BF16"', b'"F16" ')]
)
def test_a_header_that_makes_no_sense_is_an_error(old: bytes, new: bytes):
    data = example()
    assert old in data
    with pytest.raises(ValueError, match="not a sample in safetensors format"):
        decode_record(data.replace(old, new, 1))
