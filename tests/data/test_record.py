"""Tests of jaxload.data.record."""

import ml_dtypes
import numpy as np
import pytest
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
