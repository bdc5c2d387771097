"""Valid seeds of random numbers."""

from jaxload.errors import InputError

MAX_SEED = 2**32 - 1
"""Largest seed. JAX's keys keep only the last 32 bits of a seed."""


def check_seed(seed: int, given: str, *, largest: int = MAX_SEED) -> None:
    """Refuses a seed that would give the random numbers of another seed.

    `given` is what the user wrote, such as `train.seed=-1`, for the error message.
    """
    if not 0 <= seed <= largest:
        raise InputError(
            f"{given}: expected a seed from 0 to {largest}, since larger ones "
            "repeat the random numbers of smaller ones; choose another"
        )
