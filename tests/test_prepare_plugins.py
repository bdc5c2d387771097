"""Tests of python -m jaxload.prepare with a codec that cannot decode."""

from pathlib import Path

import pytest

from jaxload.codecs.haar import HaarCodec
from jaxload.data.manifest import read_manifest
from jaxload.errors import InputError
from tests.codecs.faulty_plugins import DecodeRaises
from tests.test_prepare import media, prepare

__all__ = ["media"]  # A fixture.


def test_a_decode_that_raises_costs_only_the_preview(
    media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    codec = ("--codec", "tests.codecs.faulty_plugins:DecodeRaises")
    message = (
        r"dataset .*out: complete, but without preview.png: codec no decoder: decode "
        r"raised RuntimeError: no decoder here; correct the codec, and run the same"
    )
    with pytest.raises(InputError, match=message):
        prepare(media, out, *codec)
    assert len(read_manifest(out)) == 13
    assert not (out / "preview.png").exists()
    monkeypatch.setattr(DecodeRaises, "decode", HaarCodec.decode)
    assert prepare(media, out, *codec) == 0
    assert (out / "preview.png").exists()
