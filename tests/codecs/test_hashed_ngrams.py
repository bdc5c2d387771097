"""Tests of jaxload.codecs.hashed_ngrams and text_encoder."""

import numpy as np

from jaxload.codecs.hashed_ngrams import HashedNgramEncoder
from jaxload.codecs.text_encoder import pad_text

ENCODER = HashedNgramEncoder(64)


def test_one_row_a_word():
    assert ENCODER.encode("A large, red circle!").shape == (4, 64)
    assert ENCODER.encode("").shape == (0, 64)


def test_same_word_same_embedding_whatever_its_case():
    one, two = ENCODER.encode("Red red")
    np.testing.assert_array_equal(one, two)


def test_fixed_for_ever():
    # Stored datasets depend on these values: a change needs a new encoder name.
    row = ENCODER.encode("circle")[0]
    np.testing.assert_allclose(row[:3], [0.301580, 1.218585, -0.447156], rtol=1e-5)


def test_related_words_are_nearer_than_unrelated_ones():
    circle, circles, square = ENCODER.encode("circle circles square")
    assert circle @ circles > 2 * abs(circle @ square)


def test_rows_have_unit_variance():
    rows = ENCODER.encode("a small blue square moving up")
    np.testing.assert_allclose(np.square(rows).mean(axis=1), 1.0, rtol=1e-5)


def test_pad_text_pads_with_zeros_and_cuts():
    text = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(pad_text(text, 4)[:, 0], [1, 1, 1, 0])
    assert pad_text(text, 2).shape == (2, 2)
