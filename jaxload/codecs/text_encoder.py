"""Protocols of text encoders, which convert captions to embeddings."""

import functools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from jaxload.codecs.hashed_ngrams import HashedNgramEncoder
from jaxload.codecs.plugin import make_plugin, whole
from jaxload.errors import InputError

_MAX_TOKENS = 512
_CHARACTERS_PER_TOKEN = 16  # SentencePiece's longest token, by default.

MAX_CHARACTERS = _CHARACTERS_PER_TOKEN * _MAX_TOKENS
"""Most characters of a caption for an encoder that states no `max_tokens`."""


@runtime_checkable
class TextEncoder(Protocol):
    """Converts a caption to one embedding per token.

    An encoder may also state `max_tokens`, the most tokens that it encodes; see
    `max_characters`.
    """

    name: str
    """Name and version of the encoder, recorded in the dataset's fingerprint."""

    dim: int

    def encode(self, caption: str) -> np.ndarray:
        """Returns embeddings `[T, dim]` in float32, without padding."""
        ...


@runtime_checkable
class BatchTextEncoder(TextEncoder, Protocol):
    """Text encoder that encodes several captions in one call, for example on a GPU."""

    batch_size: int
    """Captions per batch; `encode_batch` always gets exactly this number."""

    def encode_batch(self, captions: Sequence[str]) -> Sequence[np.ndarray]:
        """Returns one array `[T, dim]` per caption, in float32, without padding.

        A caption's embedding must not depend on the other captions of the batch.
        """
        ...


@functools.cache
def load_text_encoder(name: str, dim: int) -> TextEncoder:
    """Returns a text encoder by name: built in, or module:attribute.

    The encoder is made once per process. Its embeddings must have width `dim`; built-in
    encoders support any width.
    """
    built_in = {HashedNgramEncoder.name: lambda: HashedNgramEncoder(dim)}
    encoder = make_plugin("text encoder", name, built_in, TextEncoder, BatchTextEncoder)
    whole(f"text encoder {name!r}: dim", encoder.dim)
    if isinstance(encoder, BatchTextEncoder):
        whole(f"text encoder {name!r}: batch_size", encoder.batch_size)
    if encoder.dim != dim:
        raise InputError(
            f"text encoder {name!r}: gives embeddings of width {encoder.dim}, expected "
            f"{dim}; set model.text_dim={encoder.dim}"
        )
    return encoder


def max_characters(encoder: TextEncoder) -> int:
    """Returns the most characters of a caption that are stored and encoded.

    These are 16 for each of the encoder's `max_tokens`, or of 512 tokens if it states
    none. Few tokens are longer, so the text that is cut off has no token anyway.
    """
    tokens = getattr(encoder, "max_tokens", _MAX_TOKENS)
    if not isinstance(tokens, int) or tokens < 1:
        raise InputError(
            f"text encoder {encoder.name}: max_tokens={tokens!r}: expected a whole "
            "number of at least 1; correct the encoder"
        )
    return _CHARACTERS_PER_TOKEN * tokens


def pad_text(text: np.ndarray, num_tokens: int) -> np.ndarray:
    """Cuts a text embedding, or pads it with zeros, to `[num_tokens, dim]`."""
    padded = np.zeros((num_tokens, text.shape[1]), dtype=text.dtype)
    padded[: len(text)] = text[:num_tokens]
    return padded
