"""Text encoders turn captions into embeddings; the built-in one needs no download."""

import functools
import hashlib
import re
from typing import Protocol, runtime_checkable

import numpy as np

from jaxload.codecs.plugin import make_plugin
from jaxload.errors import InputError

_WORD = re.compile(r"\w+")
_NGRAM = 3


@runtime_checkable
class TextEncoder(Protocol):
    """Converts a caption to embeddings."""

    name: str
    """Name and version of the encoder, recorded to compare datasets."""

    dim: int

    def encode(self, caption: str) -> np.ndarray:
        """Returns embeddings `[T, dim]` in float32, without padding."""
        ...


class HashedNgramEncoder:
    """Gives one embedding per word; words that share letters have similar embeddings.

    Each n-gram of a word stands for a fixed random direction, so the encoder is the
    same on every machine and separates any two captions that differ in a word.
    """

    name = "hashed-ngrams"

    def __init__(self, dim: int):
        self.dim = dim

    def encode(self, caption: str) -> np.ndarray:
        """Returns `[T, dim]` in float32, with one row of unit variance per word."""
        words = _WORD.findall(caption.lower())
        rows = [_word_embedding(word, self.dim) for word in words]
        return np.array(rows, dtype=np.float32).reshape(len(words), self.dim)


@functools.cache
def load_text_encoder(name: str, dim: int) -> TextEncoder:
    """Makes a built-in text encoder or a module:attribute, once per process.

    A built-in encoder takes any width; one of a module has its own, which must be
    `dim`.
    """
    built_in = {HashedNgramEncoder.name: lambda: HashedNgramEncoder(dim)}
    encoder = make_plugin("text encoder", name, built_in, TextEncoder)
    if encoder.dim != dim:
        raise InputError(
            f"text encoder {name!r}: gives embeddings of width {encoder.dim}, expected "
            f"{dim}; set model.text_dim={encoder.dim}"
        )
    return encoder


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


def pad_text(text: np.ndarray, num_tokens: int) -> np.ndarray:
    """Cuts a text embedding, or pads it with zeros, to `[num_tokens, dim]`."""
    padded = np.zeros((num_tokens, text.shape[1]), dtype=text.dtype)
    padded[: len(text)] = text[:num_tokens]
    return padded
