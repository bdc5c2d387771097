"""Endless streams of a form's samples, in a new random order in each pass."""

import functools

import numpy as np

_SHUFFLE_ROUNDS = 4  # Rounds of Grain's block cipher; the default of Grain.

# Largest size whose whole order is stored. The cipher works on at least 16 bits and
# repeats until its output is in range, which for small sizes takes thousands of tries.
_MAX_STORED = 1 << 14


def shuffled(index: int, *, size: int, seed: int, stream: int, lap: int) -> int:
    """Returns element `index` of a random permutation of `range(size)`.

    Each stream has another permutation in each lap, which is one pass over its samples.
    """
    if size <= _MAX_STORED:
        return int(_order(size, seed, stream, lap)[index])
    # Imported here, because Grain imports JAX, which planning does not need.
    from grain.experimental import index_shuffle

    return index_shuffle(
        index,
        max_index=size - 1,
        seed=_shuffle_seed(seed, stream, lap),
        rounds=_SHUFFLE_ROUNDS,
    )


def stream_members(
    first: int, count: int, *, num_samples: int, seed: int, stream: int
) -> np.ndarray:
    """Returns `count` samples of a stream from position `first` on."""
    parts, position, end = [np.zeros(0, np.int64)], first, first + count
    while position < end:
        lap, offset = divmod(position, num_samples)
        size = min(end - position, num_samples - offset)
        parts.append(_members_of_lap(offset, size, num_samples, seed, stream, lap))
        position += size
    return np.concatenate(parts)


def _members_of_lap(
    offset: int, count: int, num_samples: int, seed: int, stream: int, lap: int
) -> np.ndarray:
    """Returns consecutive samples of one pass over a stream."""
    if num_samples <= _MAX_STORED:
        order = _order(num_samples, seed, stream, lap)
        return order[offset : offset + count].astype(np.int64)
    from grain.experimental import index_shuffle

    key, largest = _shuffle_seed(seed, stream, lap), num_samples - 1
    return np.array(
        [
            index_shuffle(i, max_index=largest, seed=key, rounds=_SHUFFLE_ROUNDS)
            for i in range(offset, offset + count)
        ],
        np.int64,
    )


@functools.lru_cache(maxsize=512)
def _order(size: int, seed: int, stream: int, lap: int) -> np.ndarray:
    # numpy guarantees raw bits across versions, but not permutations or distributions.
    bits = np.random.Philox(_shuffle_seed(seed, stream, lap)).random_raw(size)
    return np.argsort(bits, kind="stable").astype(np.int32)


@functools.lru_cache(maxsize=4096)
def _shuffle_seed(seed: int, stream: int, lap: int) -> int:
    """Returns a distinct 32-bit seed for each stream and each pass over the stream."""
    sequence = np.random.SeedSequence([seed, stream, lap])
    return int(sequence.generate_state(1)[0])
