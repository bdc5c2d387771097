"""Tests of jaxload.media.listing."""

import pytest

from jaxload.media.listing import Listing, MediaFile, difference


def listing(*files: MediaFile) -> Listing:
    return Listing(files=files, problems=())


A = MediaFile(name="a.png", num_bytes=10, caption="one")
B = MediaFile(name="b\n.png", num_bytes=10, caption=None)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (listing(A), "b\\n.png is gone"),
        (listing(A, B, MediaFile(name="c", num_bytes=1, caption=None)), "c is new"),
        (
            listing(MediaFile(name="a.png", num_bytes=9, caption="one"), B),
            "a.png had 10 bytes, and has 9",
        ),
        (
            listing(MediaFile(name="a.png", num_bytes=10, caption="two"), B),
            "a.png has another caption",
        ),
    ],
)
def test_the_first_difference_is_named(after: Listing, words: str):
    before = listing(A, B)
    assert before.digest() != after.digest()
    assert difference(before, after) == words
