"""The endless stream of a shape's samples: a new random order in each pass."""

import functools

import numpy as np

_SHUFFLE_ROUNDS = 4  # Of Grain's block cipher; its own default.

# Up to so many things their order is written down. The cipher has 16 bits at least, and
# is asked again until what it says is in range: thousands of times for a few things.
_MAX_WRITTEN = 1 << 14


def shuffled(index: int, *, size: int, seed: int, stream: int, lap: int) -> int:
    """Where a random order of `size` things has `index`, for any size at once."""
    if size <= _MAX_WRITTEN:
        return int(_order(size, seed, stream, lap)[index])
    # Here, because it imports JAX, which planning can do without.
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
    """The samples at `count` positions of a stream, each in [0, num_samples)."""
    lap, offset = divmod(first, num_samples)
    if num_samples <= _MAX_WRITTEN and offset + count <= num_samples:
        order = _order(num_samples, seed, stream, lap)
        return order[offset : offset + count].astype(np.int64)
    members = []
    for position in range(first, first + count):
        lap, offset = divmod(position, num_samples)
        members.append(
            shuffled(offset, size=num_samples, seed=seed, stream=stream, lap=lap)
        )
    return np.array(members, dtype=np.int64)


@functools.lru_cache(maxsize=512)
def _order(size: int, seed: int, stream: int, lap: int) -> np.ndarray:
    # Sorted raw bits: unlike its distributions, numpy promises these for ever.
    bits = np.random.Philox(_shuffle_seed(seed, stream, lap)).random_raw(size)
    return np.argsort(bits, kind="stable").astype(np.int32)


@functools.lru_cache(maxsize=4096)
def _shuffle_seed(seed: int, stream: int, lap: int) -> int:
    """A 32-bit seed of its own for each stream and each pass over it."""
    sequence = np.random.SeedSequence([seed, stream, lap])
    return int(sequence.generate_state(1)[0])
