"""Encodes batches of clips and captions, and checks the arrays that plugins return."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxload.codecs.batch import CaptionBatches, ClipBatches
from jaxload.codecs.codec import Codec
from jaxload.codecs.plugin import described
from jaxload.codecs.text_encoder import TextEncoder
from jaxload.data.record import BFLOAT16
from jaxload.errors import InputError
from jaxload.shapes.shape import Shape

Key: TypeAlias = Shape | None
"""Key that all items of a batch share: the shape of clips, or None for captions."""

_MAX_FAILED = 3  # Whole batches, and files: fewer may be clips of damaged files.


@dataclasses.dataclass(frozen=True)
class Failure:
    """Reason why a clip or a caption could not be encoded."""

    detail: str
    is_poison: bool = False
    """True if encoders died on the item: this run must not try its file again."""


Result: TypeAlias = np.ndarray | Failure
"""A latent or an embedding in bfloat16, or the reason why there is none."""


@dataclasses.dataclass
class BatchEncoder:
    """Runs a codec and a text encoder on batches of one key.

    Each is loaded at its first use, because a process may need only one of them.
    """

    load_codec: Callable[[], Codec]
    load_text_encoder: Callable[[], TextEncoder]
    _num_failed: int = dataclasses.field(default=0, init=False)
    """Batches in a row of which no item could be encoded."""
    _failed_files: set[str] = dataclasses.field(default_factory=set, init=False)
    """Files of these batches."""

    def size(self, key: Key) -> int:
        """Returns the number of items in a full batch."""
        if key is None:
            return CaptionBatches(self.load_text_encoder()).size()
        return ClipBatches(self.load_codec()).size(key.pixels)

    def encode(
        self, key: Key, items: Sequence[Any], names: Sequence[str]
    ) -> list[Result]:
        """Encodes videos `[P, Y, X, 3]` of one shape, or captions if `key` is None.

        If a batch raises an exception, its items are encoded one by one, so that only
        the items at fault have no result. `names` are the files of the items.

        Raises:
            InputError: The items are not at fault: the batch takes too much memory, or
                several whole batches, of several files, failed in a row.
        """
        run = self._encode_captions if key is None else self._encode_clips(key)
        results = self._encode(run, key, items)
        failures = [result for result in results if isinstance(result, Failure)]
        if len(items) > 1 and len(failures) == len(items):
            self._num_failed += 1
            self._failed_files.update(names)
        elif len(failures) < len(items):
            self._num_failed = 0
            self._failed_files.clear()
        if min(self._num_failed, len(self._failed_files)) >= _MAX_FAILED:
            raise InputError(
                f"{self._who(key)} failed on {self._num_failed} whole batches in a "
                f"row, last on {len(items)} {_noun(key)}: {failures[-1].detail}; "
                "correct it, and run the same command again; finished parts are kept"
            )
        return results

    def _encode(
        self, run: Callable[[Sequence[Any]], list[Result]], key: Key, items: Sequence
    ) -> list[Result]:
        try:
            return run(items)
        except Exception as error:  # Codecs and text encoders may raise anything.
            size = self.size(key)
            if size > 1 and _is_out_of_memory(error):
                # A single item would need as much, because a batch is always filled.
                raise InputError(
                    f"{self._who(key)} ran out of memory on a batch of {size} "
                    f"{_noun(key)} ({described(error)}); lower its batch size, and "
                    "run the same command again; finished parts are kept"
                ) from error
            if len(items) == 1:
                return [Failure(described(error))]
        return [self._encode(run, key, [item])[0] for item in items]

    def _who(self, key: Key) -> str:
        if key is None:
            return f"text encoder {self.load_text_encoder().name}"
        return f"codec {self.load_codec().name}"

    def _encode_clips(self, shape: Shape) -> Callable[[Sequence[Any]], list[Result]]:
        codec, who = self.load_codec(), self._who(shape)
        expected = (shape.frames, shape.height, shape.width, codec.channels)

        def run(videos: Sequence[np.ndarray]) -> list[Result]:
            latents = ClipBatches(codec).encode(videos)
            _check_count(who, len(latents), len(videos))
            return [_checked(who, latent, expected) for latent in latents]

        return run

    def _encode_captions(self, captions: Sequence[str]) -> list[Result]:
        encoder, who = self.load_text_encoder(), self._who(None)
        texts = CaptionBatches(encoder).encode(captions)
        _check_count(who, len(texts), len(captions))
        return [_checked(who, text, (len(text), encoder.dim)) for text in texts]


def _noun(key: Key) -> str:
    return "captions" if key is None else f"clips of {'x'.join(map(str, key.pixels))}"


def _is_out_of_memory(error: Exception) -> bool:
    # XLA and PyTorch raise a RuntimeError.
    text = str(error).lower()
    named = "resource_exhausted" in text or "out of memory" in text
    return named or isinstance(error, MemoryError)


def _check_count(who: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{who} returned {found} results, expected {expected}")


def _checked(who: str, array: np.ndarray, shape: tuple[int, ...]) -> Result:
    """Converts an array to bfloat16; fails for a wrong shape or non-finite values."""
    if array.shape != shape:
        return Failure(f"{who} returned {array.shape}, expected {shape}")
    array = array.astype(BFLOAT16)
    if not np.isfinite(array.astype(np.float32)).all():
        return Failure(f"{who} returned numbers that are not finite in bfloat16")
    return array
