"""Tests that the code of docs/adding-a-codec.md does what the page says."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxload.codecs.codec import BatchCodec, Codec
from jaxload.codecs.text_encoder import BatchTextEncoder, TextEncoder
from jaxload.config import load, override_all
from jaxload.data.manifest import read_manifest
from jaxload.data.record import decode_record
from jaxload.data.source import open_records
from tests.test_prepare import media, prepare

__all__ = ["media"]  # A fixture.

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-codec.md"
MODULES = ("my_codecs", "latent_scale", "my_text")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Saves the page's code as it says, where workers find it too."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, block in zip(MODULES, blocks, strict=True):
        assert f"`{name}.py`" in PAGE.read_text()
        (tmp_path / f"{name}.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("batched", "workers"),
    [("", "0"), ("Batched", "0"), pytest.param("Batched", "1", marks=pytest.mark.slow)],
)
def test_the_examples_prepare_a_folder(
    media: Path, modules: Path, batched: str, workers: str
):
    out = modules / "out"
    plugs = ("--codec", f"my_codecs:{batched}BlockMeans", "--set", "model.text_dim=26")
    text = ("--text-encoder", f"my_text:{batched}Letters", "--workers", workers)
    assert prepare(media, out, *plugs, *text) == 0
    manifest = read_manifest(out)
    assert len(manifest) == 13
    assert manifest.fingerprint["channels"] == 3
    if not batched:
        check_latent_scale(modules, out)
    with Image.open(out / "preview.png") as preview:
        assert min(preview.size) > 200


def check_latent_scale(modules: Path, out: Path) -> None:
    """Compares the output of the page's program with the records."""
    program = [sys.executable, str(modules / "latent_scale.py"), str(out)]
    result = subprocess.run(program, capture_output=True, text=True, check=True)
    found = np.array(re.findall(r"-?\d\.\d*", result.stdout), float)
    records = open_records(read_manifest(out))
    pixels = [decode_record(r).tokens.astype(float).reshape(-1, 3) for r in records]
    positions = np.concatenate(pixels)
    expected = [*positions.mean(axis=0), *positions.std(axis=0)]
    np.testing.assert_allclose(found, expected, atol=0.006)
    # The page's own numbers leave about the scale of noise.
    assert 0.5 < min(expected[3:]) <= max(expected[3:]) < 2.0


def test_the_commands_are_complete(root: Path):
    """Checks the arguments that a reader would otherwise have to guess."""
    commands = re.findall(r"^python -m jaxload\.(\w+) (.*)$", PAGE.read_text(), re.M)
    assert [name for name, _ in commands] == [
        *("prepare", "train", "sample"),
        *("prepare", "train"),
    ]
    for name, arguments in commands:
        if name != "sample":
            assert "--config configs/clips.py" in arguments
            fields = re.findall(r"--set (\S+)", arguments)
            override_all(load(root / "configs" / "clips.py"), fields)


def test_the_examples_are_what_they_say(modules: Path):
    codecs, text = map(importlib.import_module, ("my_codecs", "my_text"))
    assert isinstance(codecs.BlockMeans(), Codec)
    assert not isinstance(codecs.BlockMeans(), BatchCodec)
    assert isinstance(codecs.BatchedBlockMeans(), BatchCodec)
    assert isinstance(text.Letters(), TextEncoder)
    assert isinstance(text.BatchedLetters(), BatchTextEncoder)
    codec = codecs.BatchedBlockMeans()
    videos = np.random.default_rng(0).integers(0, 256, (2, 9, 16, 24, 3), np.uint8)
    latents = codec.encode_batch(videos)
    assert latents.shape == (2, 3, 2, 3, 3)
    single = [codec.encode(video) for video in videos]
    np.testing.assert_allclose(latents, single, atol=1e-5)
    assert codec.decode(latents[0]).shape == videos[0].shape
