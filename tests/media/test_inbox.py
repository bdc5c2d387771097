"""Tests of jaxload.media.inbox."""

import multiprocessing

import pytest

from jaxload.media.inbox import Inbox


def _unpickle() -> None:
    raise MemoryError("too large")


class TooLarge:
    """Object that cannot be unpickled."""

    def __reduce__(self):
        return _unpickle, ()


def test_an_error_in_receiving_is_raised_by_get():
    """The thread must not die silently: `get` would then wait for ever."""
    ours, theirs = multiprocessing.Pipe()
    inbox = Inbox(theirs)
    ours.send("first")
    ours.send(TooLarge())
    assert inbox.get() == "first"
    for _ in range(2):
        with pytest.raises(MemoryError, match="too large"):
            inbox.get()
