"""Tests of jaxload.training.workdir."""

from pathlib import Path

import pytest

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.training.workdir import WorkDir, claim_workdir


def test_a_new_directory_gets_the_resolved_config(tmp_path: Path, debug_config: Config):
    workdir = claim_workdir(tmp_path / "a" / "b", debug_config, resume=False)
    assert workdir.read_config() == debug_config


def test_an_unfinished_run_wants_resume(tmp_path: Path, debug_config: Config):
    claim_workdir(tmp_path, debug_config, resume=False)
    with pytest.raises(InputError, match=r"holds this run, unfinished; add --resume"):
        claim_workdir(tmp_path, debug_config, resume=False)
    claim_workdir(tmp_path, debug_config, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_different_run_is_refused_and_kept(
    tmp_path: Path, debug_config: Config, resume
):
    claim_workdir(tmp_path, debug_config, resume=False)
    before = (tmp_path / "config.json").read_text()
    other = config_lib.override(debug_config, "model.width=64")
    with pytest.raises(
        InputError, match=r"different run: model.width is 32 there and 64 here"
    ):
        claim_workdir(tmp_path, other, resume=resume)
    assert (tmp_path / "config.json").read_text() == before


def test_a_resume_may_change_what_no_step_depends_on(
    tmp_path: Path, debug_config: Config
):
    claim_workdir(tmp_path, debug_config, resume=False)
    longer = config_lib.override(debug_config, "train.num_steps=99")
    assert claim_workdir(tmp_path, longer, resume=True).read_config() == longer


def test_a_directory_of_something_else_is_refused(tmp_path: Path, debug_config: Config):
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        claim_workdir(tmp_path, debug_config, resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, debug_config: Config):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .*another --workdir"):
        claim_workdir(tmp_path / "file" / "run", debug_config, resume=False)


def test_a_directory_without_a_run_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"expected a run, found no config.json"):
        WorkDir(tmp_path).read_config()


def test_a_garbled_config_is_named(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json: not JSON"):
        WorkDir(tmp_path).read_config()
