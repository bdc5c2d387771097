"""Tests of jaxload.runs.workdir."""

import dataclasses
import json
from pathlib import Path

import pytest

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.runs.workdir import WorkDir, claim_workdir


def begin(path: Path, config: Config, *, resume: bool = False) -> WorkDir:
    with claim_workdir(path, config, resume=resume) as workdir:
        workdir.begin(config)
    return workdir


def claim(path: Path, config: Config, *, resume: bool = False) -> None:
    with claim_workdir(path, config, resume=resume):
        pass


def test_a_new_directory_gets_the_resolved_config(tmp_path: Path, debug_config: Config):
    assert begin(tmp_path / "a" / "b", debug_config).read_config() == debug_config


def test_a_run_that_never_began_blocks_nothing(tmp_path: Path, debug_config: Config):
    claim(tmp_path, debug_config)
    claim(tmp_path, config_lib.override(debug_config, "model.width=64"))


def test_an_unfinished_run_wants_resume(tmp_path: Path, debug_config: Config):
    begin(tmp_path, debug_config)
    with pytest.raises(InputError, match=r"holds this run, unfinished; add --resume"):
        claim(tmp_path, debug_config)
    claim(tmp_path, debug_config, resume=True)


def test_a_resume_needs_a_run(tmp_path: Path, debug_config: Config):
    path = tmp_path / "typo"
    with (
        pytest.raises(InputError, match=r"no run to resume in .*typo: .*--resume"),
        claim_workdir(path, debug_config, resume=True),
    ):
        pass
    assert not path.exists()


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path, debug_config: Config):
    WorkDir(tmp_path).begin(debug_config)
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    train = dataclasses.replace(debug_config.train, num_steps=3)
    config = dataclasses.replace(debug_config, train=train)
    message = (
        r"train\.num_steps=3: expected 4 or more, the steps that the run in .* done"
    )
    with (
        pytest.raises(InputError, match=message),
        claim_workdir(tmp_path, config, resume=True),
    ):
        pass


def test_finished_means_all_its_steps(tmp_path: Path, debug_config: Config):
    workdir = begin(tmp_path, debug_config)
    assert not workdir.is_finished(debug_config)
    workdir.mark_finished(debug_config)
    claim(tmp_path, debug_config)
    assert workdir.is_finished(debug_config)
    longer = config_lib.override(debug_config, "train.num_steps=99")
    assert not workdir.is_finished(longer)
    begin(tmp_path, longer, resume=True)
    assert not workdir.is_finished(debug_config), "an extended run is not finished yet"


@pytest.mark.parametrize("resume", [False, True])
def test_a_different_run_is_refused_and_kept(
    tmp_path: Path, debug_config: Config, resume
):
    begin(tmp_path, debug_config)
    before = (tmp_path / "config.json").read_text()
    other = config_lib.override(debug_config, "model.width=64")
    with pytest.raises(
        InputError, match=r"different run: model.width is 32 there and 64 here"
    ):
        claim(tmp_path, other, resume=resume)
    assert (tmp_path / "config.json").read_text() == before


def test_a_resume_may_change_what_no_step_depends_on(
    tmp_path: Path, debug_config: Config
):
    begin(tmp_path, debug_config)
    longer = config_lib.override(debug_config, "train.num_steps=99")
    assert begin(tmp_path, longer, resume=True).read_config() == longer


def test_one_process_at_a_time(tmp_path: Path, debug_config: Config):
    with (
        claim_workdir(tmp_path, debug_config, resume=False),
        pytest.raises(InputError, match="is in use by another process"),
    ):
        claim(tmp_path, debug_config)
    claim(tmp_path, debug_config)


def test_a_directory_of_something_else_is_refused(tmp_path: Path, debug_config: Config):
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        claim(tmp_path, debug_config)
    assert (tmp_path / "thesis.tex").read_text() == "do not touch"


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, debug_config: Config):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .*another --workdir"):
        claim(tmp_path / "file" / "run", debug_config)


def test_a_directory_without_a_run_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"expected a run, found no config.json"):
        WorkDir(tmp_path).read_config()


@pytest.mark.parametrize("number", [None, 1])
def test_a_run_of_an_older_format_is_one_line(
    tmp_path: Path, debug_config: Config, number: int | None
):
    path = begin(tmp_path, debug_config).config
    content = json.loads(path.read_text())
    assert content.pop("format") == 2
    path.write_text(json.dumps(content | ({"format": number} if number else {})))
    with pytest.raises(InputError, match=r"older format; .* another --workdir$"):
        claim(tmp_path, debug_config, resume=True)


def test_a_directory_with_only_a_compile_cache_is_no_run(
    tmp_path: Path, debug_config: Config
):
    with claim_workdir(tmp_path, debug_config, resume=False) as workdir:
        workdir.compile_cache.mkdir()
    claim(tmp_path, config_lib.override(debug_config, "model.width=64"))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="is not empty and holds no run"):
        claim(tmp_path, debug_config)


@pytest.mark.parametrize(
    "content", [b"{", b"\xff", b"[]", b'{"format": 2, "train": 3}']
)
def test_a_garbled_config_is_named(tmp_path: Path, content: bytes):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json: "):
        WorkDir(tmp_path).read_config()
