"""Tests of jaxload.runs.dataset."""

import dataclasses
import io
import shutil
from pathlib import Path

import pytest

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.runs.dataset import open_dataset


def test_a_dataset_is_drawn_and_prepared_once(
    debug_config: Config, debug_manifest: Manifest
):
    out = io.StringIO()
    path = debug_manifest.directory / "manifest.parquet"
    before = path.stat().st_mtime_ns
    open_dataset(debug_config, Console(file=out))
    assert path.stat().st_mtime_ns == before
    assert out.getvalue() == ""


def test_every_drawn_size_is_kept(debug_config: Config, debug_manifest: Manifest):
    assert debug_config.synthetic is not None
    shapes = {"x".join(map(str, s.pixels)) for s in debug_manifest.rows_by_shape}
    assert shapes == set(debug_config.synthetic.clips)
    assert len(debug_manifest) == debug_config.synthetic.num_samples


def test_a_dataset_made_otherwise_is_refused(
    debug_config: Config, debug_manifest: Manifest
):
    other = config_lib.override(debug_config, "synthetic.seed=7")
    with pytest.raises(InputError, match=r"expected media .*seed=7, .*got .*seed=0"):
        open_dataset(other, Console(quiet=True))


def test_media_drawn_otherwise_are_refused(
    debug_config: Config, debug_manifest: Manifest, tmp_path: Path
):
    media = debug_manifest.directory.with_name("debug-media")
    shutil.copytree(media, tmp_path / "set-media")
    other = config_lib.override_all(
        debug_config, [f"data.path={tmp_path / 'set'}", "synthetic.seed=7"]
    )
    with pytest.raises(InputError, match=r"set-media: .*seed=7.*seed=0"):
        open_dataset(other, Console(quiet=True))
    assert not (tmp_path / "set").exists()


def test_a_dataset_that_is_not_there_is_an_error(debug_config: Config, tmp_path: Path):
    config = config_lib.override(debug_config, f"data.path={tmp_path / 'none'}")
    config = dataclasses.replace(config, synthetic=None)
    with pytest.raises(InputError, match=r"prepare the dataset with python -m"):
        open_dataset(config, Console(quiet=True))
