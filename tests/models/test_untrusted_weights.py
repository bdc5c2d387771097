"""Tests of reading weight files, indexes and configs that were damaged or forged."""

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxload.errors import InputError
from jaxload.models import weights
from jaxload.models.weights import files, layout
from jaxload.models.weights.configs import MAX_LAYERS
from jaxload.models.weights.families import weights_of
from jaxload.models.weights.files import Described
from tests.media.byte_edits import edited
from tests.models.stored import MMDIT, WAN, Config
from tests.models.weight_edits import edited_json

ARRAYS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b.weight": np.arange(5, dtype=np.float16),
    "c.bias": np.arange(8, dtype=np.float32).reshape(2, 2, 2),
}
INDEX = "diffusion_pytorch_model.safetensors.index.json"
ORIGINAL = {
    **{"_class_name": "WanModel", "dim": 5120, "eps": 1e-06, "ffn_dim": 13824},
    **{"freq_dim": 256, "in_dim": 36, "model_type": "i2v", "num_heads": 40},
    **{"num_layers": 40, "out_dim": 16, "text_len": 512},
}
CONFIGS = {
    "wan": weights_of(WAN).write_config(WAN),
    "mmdit": weights_of(MMDIT).write_config(MMDIT),
    "original wan": ORIGINAL,
}
MARKS = st.sampled_from(
    [
        *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"-", b"1e999", b"NaN", b"null"),
        *(b"9" * 20, b"9" * 5_000, b"4294967296,4294967296,", b"0,", b"[" * 3_000),
        *(b"\xff", b"\0", b"\\n", b"\\ud83d", b'"data_offsets":[0,0],', b'"F64"'),
    ]
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Writes tensors into a directory of three files and their index."""
    path = tmp_path / "model"
    described = [Described(name, a.dtype, a.shape) for name, a in ARRAYS.items()]
    layout.write(
        path, described, lambda d: [ARRAYS[d.name]], max_file_bytes=30, config=None
    )
    assert len(list(path.iterdir())) == 4
    return path


def check_message(path: Path, error: InputError) -> None:
    """Asserts that a message is one short line with the path."""
    message = str(error)
    assert str(path) in message
    assert message.isprintable()
    assert len(message) < 1_500


def check(path: Path) -> None:
    """Asserts that tensors are inside of their files, or refused in one line."""
    try:
        tensors = layout.find(path).tensors()
    except InputError as error:
        check_message(path, error)
        return
    for name, stored in tensors.items():
        assert name.isprintable()
        assert stored.path.parent == path
        if stored.dtype in files.DTYPES:
            count = stored.shape[0] if stored.shape else 1
            num_bytes = files.DTYPES[stored.dtype].itemsize * int(np.prod(stored.shape))
            assert stored.offset + num_bytes <= stored.path.stat().st_size
            if stored.shape and num_bytes:
                assert stored.read_rows(0, count).shape == stored.shape


@pytest.mark.fuzz
@given(data=st.data())
def test_a_damaged_file_is_read_within_its_bounds_or_refused(
    model: Path, data: st.DataObject
):
    path = data.draw(st.sampled_from(sorted(model.glob("*.safetensors"))))
    before = path.read_bytes()
    path.write_bytes(data.draw(edited(before, MARKS)))
    check(model)
    path.write_bytes(before)


def test_a_file_cut_anywhere_is_refused(model: Path):
    path = min(model.glob("*.safetensors"))
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match="download or copy it again") as error:
            layout.find(model).tensors()
        check_message(path, error.value)


@pytest.mark.fuzz
@given(data=st.data())
def test_a_forged_header_is_read_within_its_bounds_or_refused(
    model: Path, data: st.DataObject
):
    path = min(model.glob("*.safetensors"))
    before = path.read_bytes()
    length = int.from_bytes(before[:8], "little")
    header, tensors = json.loads(before[8 : 8 + length]), before[8 + length :]
    text = json.dumps(data.draw(edited_json(header))).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + tensors)
    check(model)
    path.write_bytes(before)


@pytest.mark.fuzz
@given(data=st.data())
def test_an_edited_index_is_read_or_refused(model: Path, data: st.DataObject):
    index = model / INDEX
    before = index.read_bytes()
    if data.draw(st.booleans()):
        content = json.dumps(data.draw(edited_json(json.loads(before)))).encode()
    else:
        content = data.draw(edited(before, MARKS))
    index.write_bytes(content)
    check(model)
    index.write_bytes(before)


@pytest.mark.parametrize(
    "name",
    [
        *("../other.safetensors", "/etc/passwd", "below/x.safetensors", "", "."),
        *("x\0", "x\ny", "x" * 256, "\ud83d"),
    ],
)
def test_an_index_names_no_file_elsewhere(model: Path, name: str):
    path = min(model.glob("*.safetensors"))
    (model / "below").mkdir()
    for other in (model / "../other.safetensors", model / "below" / "x.safetensors"):
        other.write_bytes(path.read_bytes())
    content = json.loads((model / INDEX).read_bytes())
    content["weight_map"]["a.weight"] = name
    (model / INDEX).write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"expected (a weight_map from|3 files)") as at:
        layout.find(model)
    check_message(model, at.value)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", CONFIGS)
@given(data=st.data())
def test_an_edited_config_is_read_or_refused(
    tmp_path: Path, name: str, data: st.DataObject
):
    files.write(tmp_path / "model.safetensors", [], [])
    content = json.dumps(CONFIGS[name]).encode()
    if data.draw(st.integers(0, 3)):
        content = json.dumps(data.draw(edited_json(dict(CONFIGS[name])))).encode()
    else:
        content = data.draw(edited(content, MARKS))
    (tmp_path / "config.json").write_bytes(content)
    try:
        config = weights.read_config(tmp_path)
    except InputError as error:
        check_message(tmp_path, error)
    else:
        sizes = [v for v in dataclasses.asdict(config).values() if type(v) is int]
        assert max(sizes) <= 10**15
        names = ("depth", "num_double_blocks", "num_single_blocks")
        assert max(getattr(config, n, 0) for n in names) <= MAX_LAYERS


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (
            WAN,
            {"num_layers": 257},
            "num_layers: expected a whole .* from 1 to 256, got 257",
        ),
        (WAN, {"text_dim": 10**6 + 1}, "text_dim: expected a whole .* to 1,000,000, g"),
        (
            MMDIT,
            {"mlp_ratio": 1e300},
            "mlp_ratio: expected a number above 0, at most 1",
        ),
        (MMDIT, {"rope_axes_dim": [4, 6, 8]}, "config.json: model.rope_widths=4,6,8: "),
        (
            MMDIT,
            {"guidance_embeds": 1},
            "guidance_embeds: expected True or False, got 1",
        ),
        (WAN, {"x\ny": 1}, r"config.json: 'x\\ny': expected no such field, got 1; jax"),
        (WAN, {"new": "x" * 10**6}, "config.json: new: expected no such .*, got 'xxxx"),
    ],
)
def test_sizes_of_no_model_are_refused_in_one_line(
    tmp_path: Path, config: Config, change: dict[str, object], message: str
):
    files.write(tmp_path / "model.safetensors", [], [])
    content = weights_of(config).write_config(config) | change
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        weights.read_config(tmp_path)
    check_message(tmp_path, error.value)


def test_the_most_layers_are_compared_with_a_file_in_seconds(tmp_path: Path):
    files.write(tmp_path / "model.safetensors", [], [])
    layers = {"num_layers": MAX_LAYERS, "num_single_layers": MAX_LAYERS}
    content = weights_of(MMDIT).write_config(MMDIT) | layers
    (tmp_path / "config.json").write_text(json.dumps(content))
    start = time.process_time()
    with pytest.raises(InputError, match="expected tensors of HunyuanVideo, got other"):
        weights.load(tmp_path)
    assert time.process_time() - start < 60
