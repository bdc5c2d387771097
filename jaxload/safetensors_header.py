"""Parses headers of safetensors, which may come from untrusted files.

The checks are those of the safetensors library, and bounds on sizes: a header that
passes describes tensors that fill the data after the header without gaps or overlaps.
"""

import itertools
import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

LENGTH_BYTES = 8
"""Bytes in front of a header, which hold its length as a little-endian integer."""

MAX_BYTES = 25_000_000
"""Most bytes of a header. Parsing takes up to thirty times as much memory; a header
that describes 100,000 tensors has 12 MB."""

_METADATA = "__metadata__"
_MAX_NAME = 1_000
_MAX_AXES = 32  # Arrays of numpy have at most 64.
_MAX_ELEMENTS = 1 << 48  # Far below the integers that numpy counts bytes with.
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


class Entry(NamedTuple):
    """Description of one tensor."""

    dtype: str
    """Name of the dtype in the format, such as BF16."""

    shape: tuple[int, ...]
    begin: int
    """Position of the first byte, counted from the end of the header."""

    end: int
    """Position after the last byte, counted from the end of the header."""


class Header(NamedTuple):
    """Tensors of a file or a record."""

    tensors: Mapping[str, Entry]
    num_bytes: int
    """Bytes of all tensors, which follow the header."""


def parse(header: bytes) -> Header:
    """Parses and checks a header; raises ValueError, in one line, if it is invalid.

    `header` is the JSON without the eight bytes in front of it.
    """
    if len(header) > MAX_BYTES:
        raise ValueError(f"expected at most {MAX_BYTES} bytes, got {len(header)}")
    content = _parse_json(header)
    if not isinstance(content, dict):
        raise ValueError(
            f"expected an object that names tensors, got {reprlib.repr(content)}"
        )
    _check_metadata(content.pop(_METADATA, None))
    tensors = {_checked_name(name): _entry(name, content[name]) for name in content}
    return Header(tensors, _num_bytes(tensors))


def _parse_json(header: bytes) -> Any:
    try:
        return json.loads(
            header.decode(),
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise ValueError(
            "expected JSON of a header, got brackets nested too deep"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got other text ({error})") from error
    except UnicodeDecodeError as error:
        raise ValueError("expected JSON, got bytes that are not UTF-8") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("expected every name once, got a repeated one")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"expected JSON, got the number {name}")


def _check_metadata(metadata: Any) -> None:
    is_object = metadata is None or isinstance(metadata, dict)
    if not is_object or not all(isinstance(v, str) for v in (metadata or {}).values()):
        raise ValueError(
            f"expected texts by name as {_METADATA}, got {reprlib.repr(metadata)}"
        )


def _checked_name(name: str) -> str:
    if len(name) > _MAX_NAME or not name.isprintable():
        raise ValueError(
            f"expected printable names of at most {_MAX_NAME} characters, got "
            f"{reprlib.repr(name)}"
        )
    return name


def _entry(name: str, entry: Any) -> Entry:
    match entry:
        case {
            "dtype": str(dtype),
            "shape": [*shape],
            "data_offsets": [int(begin), int(end)],
        } if len(shape) <= _MAX_AXES and all(
            _is_count(n) for n in (*shape, begin, end)
        ):
            pass
        case _:
            raise ValueError(
                f"expected dtype, shape and data_offsets of {name}, got "
                f"{reprlib.repr(entry)}"
            )
    # Axes of length 0 do not count, because numpy ignores them in its own limit.
    if math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS:
        raise ValueError(
            f"expected at most {_MAX_ELEMENTS} elements of {name}, got "
            f"{reprlib.repr(shape)}"
        )
    if dtype not in _BITS:
        raise ValueError(
            f"expected a dtype of safetensors for {name}, got {reprlib.repr(dtype)}"
        )
    if 8 * (end - begin) != _BITS[dtype] * math.prod(shape):
        raise ValueError(
            f"expected {reprlib.repr(shape)} of {dtype} as {name}, got "
            f"{end - begin} bytes"
        )
    return Entry(dtype, tuple(shape), begin, end)


def _is_count(number: Any) -> bool:
    """Returns whether a value is an integer from 0 to the limit of 64 bits."""
    return type(number) is int and 0 <= number < 1 << 63


def _num_bytes(tensors: Mapping[str, Entry]) -> int:
    """Checks that tensors follow each other; returns the bytes of all of them."""
    # Without the check, a small file could describe any number of large tensors.
    by_place = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end))
    ends = itertools.chain([0], (entry.end for _, entry in by_place))
    for (name, entry), end in zip(by_place, ends, strict=False):
        if entry.begin != end:
            raise ValueError(
                f"expected {name} to begin at byte {end}, where the tensor before it "
                f"ends, got {entry.begin}"
            )
    return by_place[-1][1].end if by_place else 0
