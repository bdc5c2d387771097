"""Tests of jaxload.files."""

import os
import subprocess
from pathlib import Path

import pytest

from jaxload.errors import InputError
from jaxload.files import read_json, remove_leftovers, replaced, write_atomically


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


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/a: cannot be written \(Not a dir"):
        write_atomically(tmp_path / "file" / "a", "text")


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"x.json: cannot be read \(No such file.*\); look again"),
        (b"{", r"x.json: not JSON \(.*\); look again"),
        (b"\xff\xfe", r"x.json: not JSON \(.*\); look again"),
        (b"[1]", r"x.json: expected a JSON object, got \[1\]; look again"),
    ],
)
def test_what_is_no_json_object_is_an_error(tmp_path: Path, content, message):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_json(path, remedy="look again")
