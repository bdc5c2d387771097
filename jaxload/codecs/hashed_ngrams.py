"""Built-in text encoder: hashed n-grams of words, without weights to download."""

import functools
import hashlib
import re

import numpy as np

_WORD = re.compile(r"\w+")
_NGRAM = 3


class HashedNgramEncoder:
    """Text encoder with one embedding per word; similar words have similar embeddings.

    A word's embedding is the normalised sum of one fixed random vector per n-gram. The
    hash of the n-gram seeds that vector, so embeddings are equal on every machine.
    """

    name = "hashed-ngrams"

    def __init__(self, dim: int):
        self.dim = dim

    def encode(self, caption: str) -> np.ndarray:
        """Returns `[T, dim]` in float32, with one row of unit variance per word."""
        words = _WORD.findall(caption.lower())
        rows = [_word_embedding(word, self.dim) for word in words]
        return np.array(rows, dtype=np.float32).reshape(len(words), self.dim)


@functools.lru_cache(maxsize=65_536)
def _word_embedding(word: str, dim: int) -> np.ndarray:
    marked = f"<{word}>"
    ngrams = [marked, *(marked[i : i + _NGRAM] for i in range(len(marked) - 2))]
    total = np.sum([_direction(ngram, dim) for ngram in ngrams], axis=0)
    return total * np.sqrt(dim) / np.linalg.norm(total)


def _direction(ngram: str, dim: int) -> np.ndarray:
    digest = hashlib.blake2b(ngram.encode(), digest_size=16).digest()
    return np.random.Generator(
        np.random.Philox(int.from_bytes(digest, "little"))
    ).standard_normal(dim)
