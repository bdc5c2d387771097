"""Tests of jaxload.training.intact and jaxload.training.digests."""

import io
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.training import intact
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.digests import FILE_NAME
from jaxload.training.intact import check_frozen, clear_the_way, newest_intact
from tests.training.damage import (
    cut,
    delete,
    empty,
    files_of,
    flip,
    save_steps,
    small_state,
)

DAMAGES: list[Callable[[Path], None]] = [delete, empty, cut]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the frozen parameters and the checkpoints of steps 4 and 8."""
    directory = tmp_path_factory.mktemp("saved")
    save_steps(directory, 4, 8, frozen=True)
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """Returns a copy of the checkpoints, to damage."""
    return shutil.copytree(saved, tmp_path / "copy")


def find(directory: Path) -> tuple[int | None, list[str]]:
    """Returns the newest intact step, and the lines printed about damage."""
    out = io.StringIO()
    step = newest_intact(directory, Console(file=out))
    lines = out.getvalue().splitlines()
    return step, [line for line in lines if not line.startswith("checking ")]


def test_intact_checkpoints_say_nothing(saved: Path):
    assert find(saved) == (8, [])
    check_frozen(saved, Console(quiet=True))
    names = {path.relative_to(saved / "8").as_posix() for path in files_of(saved / "8")}
    described = json.loads((saved / "8" / FILE_NAME).read_text())
    assert described.keys() == names - {FILE_NAME}


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damaged_file_is_named_and_the_checkpoint_before_is_used(
    copy: Path, saved: Path, damage: Callable[[Path], None]
):
    for path in files_of(copy / "8"):
        damage(path)
        step, (line,) = find(copy)
        assert step == 4, path
        name = path.relative_to(copy / "8").as_posix()
        assert line.startswith(
            (f"{path}: ", f"{copy / '8'}: expected its file '{name}', found n")
        )
        assert line.endswith("; trying the checkpoint of step 4")
        shutil.copy(saved / path.relative_to(copy), path)
    assert find(copy) == (8, [])


def assert_flips_are_caught(copy: Path, seed: int, count: int) -> None:
    rng = random.Random(seed)
    paths = files_of(copy / "8")
    for _ in range(count):
        path = rng.choice(paths)
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        step, lines = find(copy)
        assert step == 4, f"{path}, bit {bit}"
        (line,) = lines
        # A flip in the digests themselves names the file that they describe.
        assert str(copy / "8") in line
        assert path.name == FILE_NAME or line.startswith(f"{path}: expected ")
        flip(path, bit)
    assert find(copy) == (8, [])


def test_a_flipped_bit_in_any_file_is_caught(copy: Path):
    assert_flips_are_caught(copy, seed=0, count=40)


@pytest.mark.soak
def test_many_flipped_bits_are_caught(copy: Path):
    assert_flips_are_caught(copy, seed=1, count=5_000)


@pytest.mark.parametrize("damage", [*DAMAGES, lambda path: flip(path, 5)])
def test_a_damaged_file_of_the_frozen_parameters_is_named(
    copy: Path, saved: Path, damage: Callable[[Path], None]
):
    for path in files_of(copy / "frozen"):
        damage(path)
        with pytest.raises(InputError, match=f"{copy / 'frozen'}.*another --workdir$"):
            check_frozen(copy, Console(quiet=True))
        shutil.copy(saved / path.relative_to(copy), path)
    check_frozen(copy, Console(quiet=True))
    shutil.rmtree(copy / "frozen")
    with pytest.raises(InputError, match="frozen: expected the frozen parameters of"):
        check_frozen(copy, Console(quiet=True))


def test_an_empty_directory_is_no_checkpoint(copy: Path):
    (copy / "12").mkdir()
    step, (line,) = find(copy)
    assert step == 8
    assert line.startswith(f"{copy / '12'}/state/_METADATA: expected a file of the ")


def test_a_position_of_another_step_is_named(copy: Path):
    (copy / "8").rename(copy / "12")
    step, (line,) = find(copy)
    assert step == 4
    assert line.startswith(
        f"{copy / '12' / 'data' / 'metadata'}: expected the data position of step 12, "
        "got {'step': 8}"
    )


def test_without_an_intact_checkpoint_nothing_is_used(copy: Path):
    shutil.rmtree(copy / "4")
    cut(copy / "8" / "data" / "metadata")
    with pytest.raises(InputError, match=r"8/data/metadata: exp.* another --workdir$"):
        find(copy)
    shutil.rmtree(copy / "8")
    assert find(copy) == (None, [])
    assert find(copy / "nowhere") == (None, [])


def make_older(directory: Path) -> None:
    """Removes everything that versions without digests did not write."""
    (directory / FILE_NAME).unlink()
    path = directory / "_CHECKPOINT_METADATA"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"custom_metadata": {}}))


def test_a_checkpoint_of_an_older_version_is_used_unchecked(copy: Path):
    make_older(copy / "8")
    note = f"{copy / '8'}: has no digests, as written by an older version; its content"
    step, (line,) = find(copy)
    assert step == 8
    assert line == f"{note} is not checked"
    empty(copy / "8" / "data" / "metadata")
    step, (line,) = find(copy)
    assert step == 4
    assert line.startswith(f"{copy / '8' / 'data' / 'metadata'}: expected content, ")


def test_damage_to_a_checkpoint_of_an_older_version_is_one_line(copy: Path):
    make_older(copy / "8")
    for path in (copy / "8" / "state").rglob("d/*"):
        path.unlink()
    with (
        Checkpoints(copy, keep=2) as checkpoints,
        pytest.raises(InputError, match=r"8: cannot be restored \(.*remove it to con"),
    ):
        checkpoints.restore(8, small_state(8, frozen=True))


def test_a_checkpoint_that_a_run_removes_meanwhile_is_not_called_damaged(
    copy: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
):
    """The run saves step 12 and removes step 8 while `sample` checks step 8."""
    check = intact.check_digests

    def check_too_late(directory: Path, *, on_file: Callable[[], object]) -> bool:
        if directory.name == "8":
            shutil.rmtree(directory)
            save_steps(copy, 12)
        return check(directory, on_file=on_file)

    monkeypatch.setattr(intact, "check_digests", check_too_late)
    assert find(copy) == (12, [])


def test_a_checkpoint_that_was_committed_but_not_sealed_is_used(copy: Path):
    """The process was killed before it described what Orbax writes last."""
    path = copy / "8" / FILE_NAME
    known = json.loads(path.read_text())
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
        del known[name]
    path.write_text(json.dumps(known))
    assert find(copy) == (8, [])


def test_damaged_checkpoints_make_room_and_are_kept(copy: Path):
    (copy / "12").mkdir()
    (copy / "12.damaged").mkdir()
    (copy / "10.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    cut(copy / "8" / "data" / "metadata")
    step, lines = find(copy)
    assert step == 4
    assert len(lines) == 2
    clear_the_way(copy, step)
    save_steps(copy, 8)
    assert find(copy) == (8, [])
    names = {path.name for path in copy.iterdir()}
    assert names == {"8", "8.damaged", "12.damaged", "frozen"}


KILLED = """
import os, pathlib, signal, sys
from jaxload.training import checkpoint
from tests.training.damage import save_steps

write = checkpoint.write_digests
def write_and_die(directory):
    if sys.argv[2] == "after":
        write(directory)
    os.kill(os.getpid(), signal.SIGKILL)

directory = pathlib.Path(sys.argv[1])
save_steps(directory, 4)
checkpoint.write_digests = write_and_die
save_steps(directory, 8)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_killed_at_the_digests_leaves_the_checkpoint_before(
    tmp_path: Path, moment: str
):
    result = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), moment], check=False
    )
    assert result.returncode == -9
    assert [path.name for path in tmp_path.glob("8*")] == ["8.orbax-checkpoint-tmp"]
    assert find(tmp_path) == (4, [])
    save_steps(tmp_path, 8)
    assert find(tmp_path) == (8, [])


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "name", ["data/metadata", FILE_NAME, "_CHECKPOINT_METADATA", "state/_METADATA"]
)
@given(content=st.binary() | st.text().map(str.encode))
@example(content=200_000 * b"[")
@example(content=b'{"step": 8}')
@example(content=b'{"data/metadata": 3}')
@example(content=b'{"../4/data/metadata": {"bytes": 11, "sha256": ""}}')
@example(content=b'{"/dev/zero": {"bytes": 1, "sha256": ""}}')
def test_metadata_of_any_content_is_intact_or_named(
    saved: Path, name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory
):
    copy = tmp_path_factory.getbasetemp() / "fuzzed"
    if not copy.exists():
        shutil.copytree(saved, copy)
    path = copy / "8" / name
    before = path.read_bytes()
    path.write_bytes(content)
    step, lines = find(copy)
    path.write_bytes(before)
    assert (step, len(lines)) == ((8, 0) if content == before else (4, 1))
    assert all(str(copy / "8") in line and len(line) < 500 for line in lines)
