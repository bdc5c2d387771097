"""Edits of JSON values and damage to bytes, for property tests of what reads them."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from jaxload.errors import InputError

Draw = Callable[..., Any]
Place = tuple[Any, Any]
"""A list or an object, and the index or the name of one of its values."""


def fewer(divisor: int) -> settings:
    """Returns settings with a share of the profile's examples, for slow properties."""
    current = settings()
    return settings(max_examples=max(1, current.max_examples // divisor))


def nested(depth: int) -> Any:
    """Returns lists within lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


ODD: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [
            *(None, True, False, 0, -1, 1, 2, 3, 7, 2**20, 2**31, 2**40, 2**53),
            *(2**60, 2**63 - 1, 2**63, -(2**63), 2**70, 10**400, -(10**400)),
            *(0.5, -0.5, 1e-300, 5e-324, 1e100, 1e308, -1e308, math.nan, math.inf),
            *("", "x", "1", "1x2x2", "999999999x999999998x999999998", "a\nb", "\ud800"),
            *("../x", "\u00b2", "none", "mixed", "lockstep", 100_000 * "x"),
            *([], {}, [[]], {"": 0}, {"kind": []}, [None, None]),
            *(nested(60), nested(70), nested(200), 5_000 * [1], 5_000 * [[0, "x"]]),
        ]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
)
"""Values that a field seldom expects."""


@st.composite
def edits(draw: Draw, value: Any, *, most: int = 3) -> Any:
    """Draws copies of a JSON value with one to `most` edits anywhere inside.

    An edit replaces, changes, moves, removes, repeats or inserts a value.
    """
    whole = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, most))):
        places = [*_places(whole)][1:] or [(whole, 0)]
        _edit(draw, places)
        whole = whole or [None]
    return whole[0]


def as_bytes(value: Any) -> bytes:
    """Returns JSON with NaN and infinity, as Python writes it."""
    return json.dumps(value).encode()


@st.composite
def damaged(draw: Draw, content: bytes) -> bytes:
    """Draws bytes with up to three parts cut or replaced, or other bytes altogether."""
    if draw(st.integers(0, 7)) == 0:
        return draw(st.binary() | st.text().map(str.encode))
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        stop = draw(st.sampled_from([at, at + 1, at + 8, at + 64, len(data)]))
        data[at:stop] = draw(
            st.binary(max_size=8)
            | st.sampled_from([b"\n", b"\0", b"{", b"}", b",", b"-", b"9999999999"])
        )
    return bytes(data)


def assert_one_line(error: InputError, *names: object) -> None:
    """Asserts that a message is a line of bounded length that has all the names."""
    message = str(error)
    assert all(str(name) in message for name in names), message[:2_000]
    assert "\n" not in message, message[:2_000]
    assert len(message) < 1_500, message[:2_000]


def _places(parent: Any) -> Iterator[Place]:
    """Yields the place of every value, outer ones first."""
    keys = range(len(parent)) if isinstance(parent, list) else list(parent)
    for key in keys:
        yield parent, key
        if isinstance(parent[key], (dict, list)):
            yield from _places(parent[key])


def _edit(draw: Draw, places: list[Place]) -> None:
    parent, key = draw(st.sampled_from(places))
    match draw(st.sampled_from(["odd", "odd", "near", "move", "cut", "more", "many"])):
        case "odd":
            parent[key] = _odd(draw)
        case "near":
            parent[key] = _near(draw, parent[key])
        case "move":
            other, name = draw(st.sampled_from(places))
            parent[key] = copy.deepcopy(other[name])
        case "cut":
            del parent[key]
        case "more" if isinstance(parent, list):
            parent.insert(key, _odd(draw))
        case "more":
            parent[draw(st.text(max_size=8) | st.just(2_000 * "x"))] = _odd(draw)
        case "many" if isinstance(parent, list):
            parent[key:key] = draw(st.sampled_from([1, 2, 500])) * [parent[key]]
        case "many":
            parent[key] = 2 * [parent[key]]


def _odd(draw: Draw) -> Any:
    return copy.deepcopy(draw(ODD))  # Edits must not change the next example.


def _near(draw: Draw, value: Any) -> Any:
    """Draws a value of the same type and about the same size."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return draw(
            st.sampled_from([value + 1, value - 1, -value, 2 * value, value * 1000])
        )
    if isinstance(value, str):
        return value + draw(st.sampled_from([" ", "0", "x"]))
    if isinstance(value, dict):
        return dict([*value.items()][:-1])
    return value[:-1] if isinstance(value, list) else 0
