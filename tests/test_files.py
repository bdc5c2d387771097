"""Tests of jaxload.files."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.errors import InputError
from jaxload.files import (
    parse_json,
    read_json,
    remove_leftovers,
    replaced,
    write_atomically,
    written_once,
)


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path):
    path = tmp_path / "a"
    write_atomically(path, "first")

    def fail() -> None:
        with replaced(path) as partial:
            partial.write_text("half")
            assert path.read_text() == "first"
            raise RuntimeError("power failure")

    with pytest.raises(RuntimeError, match="power failure"):
        fail()
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    write_atomically(path, iter(["sec", "ond"]))
    assert path.read_text() == "second"


def test_of_two_writers_of_one_path_the_first_wins(tmp_path: Path):
    path = tmp_path / "a"
    with written_once(path) as partial:
        partial.write_text("second")
        assert not path.exists()
        path.write_text("first")  # Written by another process meanwhile.
    assert path.read_text() == "first"
    with written_once(path) as partial:
        partial.write_text("third")
    assert path.read_text() == "first"
    with written_once(tmp_path / "b") as partial:
        partial.write_text("only")
    assert (tmp_path / "b").read_text() == "only"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/a: cannot be written \(Not a dir"):
        write_atomically(tmp_path / "file" / "a", "text")


def test_a_file_that_cannot_be_read_is_not_blamed_on_the_one_written(tmp_path: Path):
    with pytest.raises(FileNotFoundError), replaced(tmp_path / "a"):
        (tmp_path / "missing").read_bytes()


def leave_partial(path: Path, pid: int) -> Path:
    """Creates the partial file of a process that was killed while writing."""
    with replaced(path) as mine:
        mine.touch()
        name = mine.name.replace(f".{os.getpid()}@", f".{pid}@")
    partial = path.with_name(name)
    partial.touch()
    return partial


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path):
    process = subprocess.Popen(["true"])
    process.wait()
    dead = leave_partial(tmp_path / "a", process.pid)
    alive = leave_partial(tmp_path / "b", os.getppid())
    elsewhere = tmp_path / f".c.{process.pid}@another-machine.partial"
    elsewhere.touch()
    remove_leftovers(tmp_path)
    assert not dead.exists()
    assert alive.exists()
    assert elsewhere.exists()
    assert (tmp_path / "a").exists()


def nested(depth: int) -> bytes:
    return depth * b"[" + b"0" + depth * b"]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"x.json: cannot be read \(No such file.*\); look again"),
        (b"{", r"x.json: not JSON \(.*\); look again"),
        (b"\xff\xfe", r"x.json: not JSON \(.*\); look again"),
        (b"[1]", r"x.json: expected a JSON object, got \[1\]; look again"),
        (200_000 * b"[", r"x.json: not JSON \(expected at most 64 levels of lists.*"),
        (b'{"a":' + nested(64) + b"}", r"x.json: not JSON \(expected at most 64 .*"),
        (b"[" + 99_999 * b"1, " + b"1]", r"x.json: expected .{99}; look again$"),
        (b'"' + 2**26 * b"a" + b'"', r"x.json: not JSON \(expected at most 67,108,864"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_json_object_is_an_error(tmp_path: Path, content, message):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_json(path, remedy="look again")


def test_the_deepest_json_that_is_read(tmp_path: Path):
    (tmp_path / "x.json").write_bytes(b'{"a":' + nested(63) + b"}")
    (value,) = read_json(tmp_path / "x.json", remedy="").values()
    for _ in range(63):
        (value,) = value
    assert value == 0


def test_reading_stops_at_the_limit():
    with pytest.raises(InputError, match="expected at most 67,108,864 bytes"):
        read_json(Path("/dev/zero"), remedy="look again")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=20,
)


@pytest.mark.fuzz
@given(value=JSON, at=st.integers(min_value=0), other=st.binary(max_size=4))
def test_any_bytes_are_json_or_one_short_line(value: Any, at: int, other: bytes):
    content = json.dumps(value).encode()
    assert repr(parse_json(content)) == repr(value)
    at %= len(content)
    damaged = content[:at] + other + content[at + len(other) :]
    try:
        parse_json(damaged)
    except ValueError as error:
        line = str(error)
        assert "\n" not in line
        assert len(line) < 300
    # Agrees with the standard library, since nothing here is large or deep.
    else:
        json.loads(damaged)
