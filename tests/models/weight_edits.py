"""Draws edits of JSON that describes weights: indexes and config.json files."""

import copy
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = (0, -1, 2, 1.5, 10**6, 2**31, 2**63, 2**64, 10**300, 1e300, 1e-300)
ODD_NAMES = (
    *("", ".", "..", "../x", "/etc/passwd", "a/b", "http://host/x", "x\0", "x\ny"),
    *("\ud83d", "\u202e", "x" * 300, "x" * 100_000, "\u732b" * 200),
)
ODD_VALUES = st.sampled_from(
    [*ODD_NUMBERS, *ODD_NAMES, None, True, [], {}, [[]], {"a": {}}, [1] * 10_000]
) | st.sampled_from([float("inf"), float("nan")])


@st.composite
def edited_json(draw: st.DrawFn, content: dict[str, Any]) -> dict[str, Any]:
    """Draws a copy of an object with up to three fields replaced, removed or added."""
    result = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        target = result
        while inner := [key for key, value in target.items() if _is_object(value)]:
            if draw(st.booleans()):
                break
            target = target[draw(st.sampled_from(inner))]
        name = draw(st.sampled_from([*target, *ODD_NAMES]))
        if draw(st.integers(0, 3)):
            # Copied, because a later edit may be of the value.
            target[name] = copy.deepcopy(draw(ODD_VALUES))
        else:
            target.pop(name, None)
    return result


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)
