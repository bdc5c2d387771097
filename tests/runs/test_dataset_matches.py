"""Tests of jaxload.runs.dataset with a dataset for another model."""

import dataclasses
import io

import pytest

from jaxload import config as config_lib
from jaxload.config import Config
from jaxload.console import Console
from jaxload.data.manifest import Manifest
from jaxload.errors import InputError
from jaxload.runs.dataset import check_dataset_matches


def check(config: Config, manifest: Manifest) -> str:
    out = io.StringIO()
    check_dataset_matches(config, manifest, Console(file=out, width=200))
    return out.getvalue()


def test_a_matching_config_prints_nothing(
    debug_config: Config, debug_manifest: Manifest
):
    assert check(debug_config, debug_manifest) == ""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("codec", "my.vae:Vae", r"data.codec=haar: .*made with my.vae:Vae; set data."),
        ("text_encoder", "t5", r"data.text_encoder=hashed-ngrams: .*set data.*=t5"),
        ("channels", 48, r"model.channels=16: .* made with 48; set model.channels=48"),
        ("text_dim", 99, r"model.text_dim=16: .* made with 99; set model.text_dim=99"),
    ],
)
def test_a_dataset_made_otherwise_is_refused(
    debug_config: Config, debug_manifest: Manifest, name: str, value, message: str
):
    fingerprint = {**debug_manifest.fingerprint, name: value}
    other = dataclasses.replace(debug_manifest, fingerprint=fingerprint)
    with pytest.raises(InputError, match=message):
        check(debug_config, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("codec_name", r"data.codec=haar: named 'haar', .* made with 'old 0.9'; use"),
        ("text_encoder_name", r"data.text_encoder=hashed-ngrams: named 'hashed-ngr"),
    ],
)
def test_another_version_of_a_plugin_is_refused(
    debug_config: Config, debug_manifest: Manifest, name: str, message: str
):
    fingerprint = {**debug_manifest.fingerprint, name: "old 0.9"}
    other = dataclasses.replace(debug_manifest, fingerprint=fingerprint)
    with pytest.raises(InputError, match=message) as error:
        check(debug_config, other)
    assert "\n" not in str(error.value)


def test_a_dataset_without_names_is_not_refused(
    debug_config: Config, debug_manifest: Manifest
):
    names = ("codec_name", "text_encoder_name")
    kept = {k: v for k, v in debug_manifest.fingerprint.items() if k not in names}
    other = dataclasses.replace(debug_manifest, fingerprint=kept)
    assert check(debug_config, other) == ""


def test_captions_that_are_cut_are_counted(
    debug_config: Config, debug_manifest: Manifest
):
    lengths = debug_manifest.read_column("text_tokens").to_pylist()
    config = config_lib.override(debug_config, "model.num_text_tokens=9")
    num_cut = sum(length > 9 for length in lengths)
    assert num_cut > 0
    assert check(config, debug_manifest).startswith(
        f"{num_cut} of {len(lengths)} captions are truncated to "
        f"model.num_text_tokens=9; the longest has {max(lengths)} tokens"
    )


def test_captions_of_masked_rows_are_not_counted(
    debug_config: Config, debug_manifest: Manifest
):
    lengths = debug_manifest.read_column("text_tokens").to_pylist()
    config = config_lib.override(debug_config, "model.num_text_tokens=9")
    half = len(lengths) // 2
    masked = dataclasses.replace(debug_manifest, masked=((0, half),))
    num_cut = sum(length > 9 for length in lengths[half:])
    assert 0 < num_cut < sum(length > 9 for length in lengths)
    assert check(config, masked).startswith(f"{num_cut} of {len(lengths) - half} ")
