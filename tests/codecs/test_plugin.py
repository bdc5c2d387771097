"""Tests of jaxload.codecs.plugin: faults are found when a plugin is loaded."""

from pathlib import Path

import pytest

from jaxload.codecs.codec import load_codec
from jaxload.codecs.text_encoder import load_text_encoder
from jaxload.errors import InputError

FAULTY = "tests.codecs.faulty_plugins"


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("NoDecode", r"NoDecode lacks decode; docs/adding-a-codec.md"),
        ("BatchWithoutSize", r"has encode_batch and lacks batch_size; add batch_size"),
        ("SizeWithoutBatch", r"has batch_size and lacks encode_batch; add encode_ba"),
        ("NumberAsSize", r"batch_size is 4: expected a method; docs/adding"),
        ("NamelessName", r"name is 1: expected text"),
        ("NoChannels", r"channels is 0: expected a whole number, at least 1"),
        ("ChannelsRaise", r"cannot be loaded \(OSError: weights are missing\)"),
    ],
)
def test_a_faulty_codec_is_one_line(attribute: str, message: str):
    with pytest.raises(InputError, match=message) as error:
        load_codec(f"{FAULTY}:{attribute}")
    assert f"codec '{FAULTY}:{attribute}'" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("MethodAsSize", r"batch_size is a method: expected a value; docs/adding"),
        ("FractionAsSize", r"batch_size is 2.5: expected a whole number, at least 1"),
        ("TextWithoutSize", r"has encode_batch and lacks batch_size; add batch_size"),
        ("TextWithoutBatch", r"has batch_size and lacks encode_batch; add encode_ba"),
    ],
)
def test_a_faulty_text_encoder_is_one_line(attribute: str, message: str):
    with pytest.raises(InputError, match=message) as error:
        load_text_encoder(f"{FAULTY}:{attribute}", 1)
    assert f"text encoder '{FAULTY}:{attribute}'" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_module_that_is_not_found_is_told_where_to_be():
    message = (
        r"No module named 'no_such'\); start the command with python -m in the "
        r"directory of no_such, or add that directory to PYTHONPATH, on each machine"
    )
    with pytest.raises(InputError, match=message):
        load_codec("no_such.vae:Vae")


def test_a_module_that_lacks_another_is_not_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "lacks_another.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match="named 'no_such_library'") as error:
        load_codec("lacks_another:Vae")
    assert "PYTHONPATH" not in str(error.value)
