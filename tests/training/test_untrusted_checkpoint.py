"""Tests of checkpoints whose metadata were forged or edited, digests included."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.training.checkpoint import Checkpoints
from jaxload.training.digests import FILE_NAME, seal_digests, write_digests
from jaxload.training.intact import check_frozen, newest_intact
from tests.json_edits import as_bytes, assert_one_line, edits, fewer
from tests.training.damage import save_steps, small_state

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the frozen parameters and the checkpoint of step 8."""
    directory = tmp_path_factory.mktemp("saved")
    save_steps(directory, 8, frozen=True)
    return directory


@pytest.fixture(scope="module")
def copy(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the checkpoints; each example rewrites one of its files."""
    return shutil.copytree(saved, tmp_path_factory.mktemp("copies") / "copy")


def forge(path: Path, content: bytes, directory: Path) -> None:
    """Writes a file of a checkpoint, and digests that agree with it."""
    path.write_bytes(content)
    (directory / FILE_NAME).unlink()
    write_digests(directory)
    seal_digests(directory)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", ["8", "frozen"])
@given(data=st.data())
def test_edited_digests_are_intact_or_named(
    saved: Path, copy: Path, name: str, data: st.DataObject
):
    path = copy / name / FILE_NAME
    before = (saved / name / FILE_NAME).read_bytes()
    edited = data.draw(edits(json.loads(before)))
    path.write_bytes(as_bytes(edited))
    try:
        assert newest_intact(copy, QUIET) == 8
        check_frozen(copy, QUIET)
    except InputError as error:
        assert_one_line(error, copy / name, "another --workdir")
    else:
        known = {*json.loads(before)}
        assert edited == json.loads(before) or {*edited} < known
    finally:
        path.write_bytes(before)


@pytest.mark.fuzz
@given(data=st.data())
@example(data=b'{"step": 8.0}')
@example(data=b'{"step": true}')
@example(data=b'{"step": 8, "step": 9}')
def test_a_forged_data_position_is_the_step_or_named(
    copy: Path, data: st.DataObject | bytes
):
    path = copy / "8" / "data" / "metadata"
    before = path.read_bytes()
    if not isinstance(data, bytes):
        data = as_bytes(data.draw(edits({"step": 8})))
    forge(path, data, copy / "8")
    try:
        assert newest_intact(copy, QUIET) == 8
        with Checkpoints(copy, keep=2) as checkpoints:
            found = checkpoints.restore_data(8)
        assert found == {"step": 8}
        assert type(found["step"]) is int
    except InputError as error:
        assert_one_line(error, path, "another --workdir")
    finally:
        forge(path, before, copy / "8")


@pytest.mark.fuzz
@pytest.mark.parametrize("name", ["state/_METADATA", "_CHECKPOINT_METADATA"])
@fewer(10)  # Each example restores a checkpoint.
@given(data=st.data())
def test_forged_metadata_restore_the_state_or_one_line(
    copy: Path, name: str, data: st.DataObject
):
    path = copy / "8" / name
    before = path.read_bytes()
    forge(path, as_bytes(data.draw(edits(json.loads(before)))), copy / "8")
    try:
        assert newest_intact(copy, QUIET) == 8
        with Checkpoints(copy, keep=2) as checkpoints:
            checkpoints.restore(8, small_state(8, frozen=True))
    except InputError as error:
        assert_one_line(error, copy / "8")
    finally:
        forge(path, before, copy / "8")
