"""Draws edits of valid files, as faulty disks, programs and attackers make them."""

from hypothesis import strategies as st

_FILLS = (b"\0", b"\x7f", b"\x80", b"\xff")
_MAX_BYTES = 64


@st.composite
def edited(
    draw: st.DrawFn, data: bytes, inserted: st.SearchStrategy[bytes] | None = None
) -> bytes:
    """Draws a copy of `data` with up to four edits, half of them near its start.

    Bytes are flipped, filled, deleted, repeated or inserted, or the rest is cut off.
    `inserted` draws what to insert; None inserts any bytes.
    """
    pieces = st.binary(max_size=8) if inserted is None else inserted
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        last = len(result) if draw(st.booleans()) else min(len(result), 200)
        at = draw(st.integers(0, last))
        size = draw(st.integers(1, _MAX_BYTES))
        end = min(at + size, len(result))
        match draw(st.sampled_from(("flip", "fill", "delete", "repeat", "add", "cut"))):
            case "flip" if at < end:
                result[at] ^= draw(st.integers(1, 255))
            case "fill":
                result[at:end] = draw(st.sampled_from(_FILLS)) * (end - at)
            case "delete":
                del result[at:end]
            case "repeat":
                result[at:at] = result[at:end]
            case "add":
                result[at:at] = draw(pieces)
            case "cut":
                del result[at:]
    return bytes(result)
