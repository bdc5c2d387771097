"""Tests of work directories whose files were damaged, forged or edited by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.data.form_rows import FormRows
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.models import family_of
from jaxload.planning import plan as plan_lib
from jaxload.planning.analytic_cost import analytic_cost
from jaxload.planning.check import check_dataset
from jaxload.planning.plan import Plan, to_json
from jaxload.runs.dataset import check_sizes
from jaxload.runs.planned import recorded_plan
from jaxload.runs.sample_choice import settle_sample
from jaxload.runs.start import check_trainable
from jaxload.runs.workdir import WorkDir, claim_workdir
from jaxload.sample import file_name
from tests.json_edits import as_bytes, assert_one_line, damaged, edits


@pytest.fixture
def workdir(tmp_path: Path, debug_config: Config) -> WorkDir:
    """Returns a work directory with a run that is not finished."""
    workdir = WorkDir(tmp_path / "run")
    workdir.path.mkdir()
    workdir.begin(debug_config)
    return workdir


def use(workdir: WorkDir, config: Config) -> None:
    """Does what `train --resume`, `sample` and `export` do first."""
    try:
        with claim_workdir(workdir.path, config, resume=True) as claimed:
            claimed.is_finished(config)
    except InputError as error:
        assert_one_line(error, workdir.path)
    try:
        found = workdir.read_config()
    except InputError as error:
        assert_one_line(error, workdir.path)
        return
    assert config_lib.from_dict(config_lib.to_dict(found)) == found
    for function in (check_sizes, settle_sample, check_model, check_resumed):
        try:
            function(found)
        except InputError as error:
            assert_one_line(error)


def check_model(config: Config) -> None:
    """Prices the model, which reads all of its sizes."""
    family_of(config.model)
    analytic_cost(config.model)
    check_trainable(config, "checkpoint")


def check_resumed(config: Config) -> None:
    """Names the file of a sample, and compares the config with its own text."""
    assert len(file_name(config.sample).encode()) < 255
    text = json.dumps(config_lib.to_dict(config))
    again = config_lib.from_dict(json.loads(text))
    assert config_lib.differences(config, again) == {}


@pytest.mark.fuzz
@given(data=st.data())
def test_an_edited_config_is_used_or_one_line(
    workdir: WorkDir, debug_config: Config, data: st.DataObject
):
    content = {"format": 2, **config_lib.to_dict(debug_config)}
    content = json.loads(json.dumps(content))
    workdir.config.write_bytes(as_bytes(data.draw(edits(content, most=2))))
    use(workdir, debug_config)


@pytest.mark.fuzz
@given(data=st.data())
def test_a_damaged_config_is_used_or_one_line(
    workdir: WorkDir, debug_config: Config, data: st.DataObject
):
    content = json.dumps({"format": 2, **config_lib.to_dict(debug_config)}).encode()
    workdir.config.write_bytes(data.draw(damaged(content)))
    use(workdir, debug_config)


@pytest.mark.fuzz
@given(data=st.data())
@example(data=None)
def test_any_file_of_a_finished_run_is_used_or_one_line(
    workdir: WorkDir, debug_config: Config, data: st.DataObject | None
):
    content = b'{"num_steps": "9"}'
    if data is not None:
        edited = edits({"num_steps": debug_config.train.num_steps})
        content = data.draw(damaged(content) | edited.map(as_bytes))
    workdir.finished.write_bytes(content)
    use(workdir, debug_config)


@pytest.mark.fuzz
@given(data=st.data())
def test_an_edited_plan_of_a_run_is_used_or_one_line(
    workdir: WorkDir,
    plan_of: Callable[..., Plan],
    debug_manifest: Manifest,
    data: st.DataObject,
):
    counts = {shape: len(rows) for shape, rows in debug_manifest.rows_by_shape.items()}
    plan = plan_of(counts, max_buckets=8)
    content = json.loads(to_json(plan)) | {"dataset": debug_manifest.digest()}
    workdir.plan.write_bytes(as_bytes(data.draw(edits(content))))
    try:
        recorded = recorded_plan(workdir)
        assert recorded is not None
        check_dataset(recorded, debug_manifest)
    except InputError as error:
        assert_one_line(error, "another --workdir")
        return
    # Every sample that the plan may name is there.
    for micro_batch in recorded.schedule(seed=0).micro_batches(0, 0)[:8]:
        forms = tuple({bucket.form: None for bucket in recorded.buckets})
        form = recorded.buckets[micro_batch.bucket].form
        rows, _ = FormRows(debug_manifest, forms).take(form, micro_batch.members)
        assert len(rows) == len(micro_batch.members)


def test_a_plan_with_samples_that_the_dataset_lacks_is_refused(
    plan_of: Callable[..., Plan], debug_manifest: Manifest
):
    counts = {
        shape: len(rows) + 1 for shape, rows in debug_manifest.rows_by_shape.items()
    }
    content = json.loads(to_json(plan_of(counts, max_buckets=8)))
    content["dataset"] = debug_manifest.digest()
    plan = plan_lib.from_dict(content, name="plan")
    message = r"the plan of the run has \d+ samples of .*, this dataset has \d+; rest"
    with pytest.raises(InputError, match=message):
        check_dataset(plan, debug_manifest)


@pytest.mark.parametrize("name", ["\u00b2", "04", "-4", "4.damaged"])
def test_other_names_among_the_checkpoints_are_no_steps(workdir: WorkDir, name: str):
    (workdir.checkpoints / name).mkdir(parents=True)
    (workdir.checkpoints / "3").mkdir()
    assert workdir.num_done() == 3
