"""Valid seeds of random numbers."""

from jaxload.errors import InputError

MAX_SEED = 2**32 - 1
"""Largest seed. JAX's keys keep only the last 32 bits of a seed."""


def check_seed(name: str, seed: int, *, largest: int = MAX_SEED) -> None:
    """Refuses a seed that would give the random numbers of another seed."""
    if not 0 <= seed <= largest:
        raise InputError(
            f"{name}={seed}: expected a seed from 0 to {largest}, since larger ones "
            "repeat the random numbers of smaller ones; choose another"
        )
