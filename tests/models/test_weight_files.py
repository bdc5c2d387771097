"""Tests of jaxload.models.weights.files and layout."""

import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from jaxload.errors import InputError
from jaxload.models.weights import files, layout
from jaxload.models.weights.files import Described

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(5).astype(ml_dtypes.bfloat16),
    "c": np.arange(8, dtype=np.float16).reshape(2, 2, 2),
}


def describe(arrays: dict[str, np.ndarray]) -> list[Described]:
    return [Described(name, a.dtype, a.shape) for name, a in arrays.items()]


def chunks_of(tensor: Described) -> Iterator[np.ndarray]:
    yield ARRAYS[tensor.name]


def write(path: Path, *, max_file_bytes: int = 1_000, **config: object) -> None:
    layout.write(
        path,
        describe(ARRAYS),
        chunks_of,
        max_file_bytes=max_file_bytes,
        config=config,
    )


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_library_reads_what_was_written(tmp_path: Path):
    files.write(tmp_path / "x", describe(ARRAYS), ARRAYS.values())
    found = safetensors.numpy.load_file(tmp_path / "x")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    with safetensors.safe_open(tmp_path / "x", "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_the_library_wrote_is_read(tmp_path: Path):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "x", metadata={"format": "pt"})
    header = files.read_header(tmp_path / "x")
    assert header.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert header[name].shape == array.shape
        rows = header[name].read_rows(1, len(array) - 1)
        assert rows.dtype == array.dtype
        np.testing.assert_array_equal(rows, array[1:])


def test_a_tensor_that_is_transposed_is_written_as_it_reads(tmp_path: Path):
    array = np.arange(600 * 3, dtype=np.float32).reshape(600, 3).T
    files.write(tmp_path / "x", describe({"a": array}), [array])
    found = safetensors.numpy.load_file(tmp_path / "x")
    np.testing.assert_array_equal(found["a"], array)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    files.write(path, describe(ARRAYS), ARRAYS.values())
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    size = len(content)
    with pytest.raises(InputError, match=rf"expected {size} bytes.* got {size - 1};"):
        files.read_header(path)
    path.write_bytes(content[:40])
    with pytest.raises(InputError, match=r"bytes with a header of .*; download"):
        files.read_header(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not json", "header: expected JSON, got other text"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}',
            "expected dtype, shape and data_offsets of a",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}',
            "expected dtype, shape and data_offsets of a",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}',
            "expected dtype, shape and data_offsets of a",
        ),
        (b'{"a": {"dtype": "F32"}}', "expected dtype, shape and data_offsets of a"),
        (
            b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
            r"expected \[2\] of F32 as a, got 4 bytes",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], '
            b'"data_offsets": [0, 0]}}',
            "elements of a, got",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}',
            "expected dtype, shape and data_offsets of a",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
            b'"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
            "expected b to begin at byte 4",
        ),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: bytes, message: str):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InputError, match=message):
        files.read_header(path)


def test_large_models_are_cut_into_files_with_an_index(tmp_path: Path):
    write(tmp_path, max_file_bytes=30)
    parts = [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = "diffusion_pytorch_model.safetensors.index.json"
    assert names_in(tmp_path) == ["config.json", *parts, index]
    assert json.loads((tmp_path / index).read_text()) == {
        "metadata": {"total_size": 24 + 10 + 16},
        "weight_map": {"a": parts[0], "b": parts[1], "c": parts[1]},
    }
    assert layout.find(tmp_path).tensors().keys() == ARRAYS.keys()


@pytest.mark.parametrize("header", [b"[]", b"3", b'{"a": {"dtype": ["F32"]}}'])
def test_a_header_that_names_no_tensors_is_refused(tmp_path: Path, header: bytes):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InputError, match=r"x\.safetensors: .* expected .* download"):
        files.read_header(path)


def test_an_index_of_something_else_is_refused(tmp_path: Path):
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": 3}}')
    with pytest.raises(InputError, match="expected a weight_map from tensors to files"):
        layout.find(tmp_path)


def test_files_of_another_save_are_gone(tmp_path: Path):
    single = "diffusion_pytorch_model.safetensors"
    write(tmp_path, max_file_bytes=30)
    (tmp_path / "other.safetensors").touch()
    write(tmp_path, x=1)
    assert names_in(tmp_path) == ["config.json", single, "other.safetensors"]
    write(tmp_path, max_file_bytes=30)
    assert single not in names_in(tmp_path)
    assert len(names_in(tmp_path)) == 5


@pytest.mark.parametrize("max_file_bytes", [30, 1_000])
def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, max_file_bytes: int):
    write(tmp_path, max_file_bytes=max_file_bytes)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(tensor: Described) -> Iterator[np.ndarray]:
        if tensor.name == "c":
            # These files would remain if the process were killed now.
            new = set(names_in(tmp_path)) - before.keys()
            assert new
            assert all(name.endswith(".partial") for name in new)
            for name, content in before.items():
                assert (tmp_path / name).read_bytes() == content
            raise KeyboardInterrupt
        yield ARRAYS[tensor.name] + ARRAYS[tensor.name]

    with pytest.raises(KeyboardInterrupt):
        layout.write(
            tmp_path,
            describe(ARRAYS),
            fail,
            max_file_bytes=max_file_bytes,
            config={},
        )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_config_of_another_save_is_beside_the_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def kill(*_):
        raise KeyboardInterrupt

    write(tmp_path)
    monkeypatch.setattr(layout.whole_files, "write_atomically", kill)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    assert names_in(tmp_path) == ["diffusion_pytorch_model.safetensors"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["diffusion_pytorch_model.safetensors", "vae.safetensors"], 0),
        (["transformer/diffusion_pytorch_model.safetensors", "other.safetensors"], 0),
        (["wan.safetensors", "notes.txt"], 0),
    ],
)
def test_a_model_is_found_in_a_directory(tmp_path: Path, names: list[str], found: int):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        files.write(tmp_path / name, [], [])
    found_files = layout.find(tmp_path)
    assert found_files.path == tmp_path / names[found]
    assert found_files.config == (tmp_path / names[found]).parent / "config.json"


def test_an_index_of_any_name_is_found(tmp_path: Path):
    for name in ("x-1.safetensors", "x-2.safetensors"):
        files.write(tmp_path / name, [], [])
    index = tmp_path / "x.safetensors.index.json"
    weight_map = {"a": "x-2.safetensors", "b": "x-1.safetensors"}
    index.write_text(json.dumps({"weight_map": weight_map}))
    for path in (tmp_path, index):
        found = layout.find(path).index
        assert found == {name: tmp_path / file for name, file in weight_map.items()}
    (tmp_path / "x-2.safetensors").unlink()
    with pytest.raises(InputError, match=r"expected 2 files .* but x-2\.safetensors;"):
        layout.find(tmp_path)
    index.write_text("{}")
    with pytest.raises(InputError, match=r"expected a weight_map .* got None;"):
        layout.find(tmp_path)


def test_a_tensor_is_read_from_the_file_that_the_index_names(tmp_path: Path):
    parts = {"x-1.safetensors": 1.0, "x-2.safetensors": 2.0}
    for name, value in parts.items():
        array = np.full(3, value, np.float32)
        files.write(tmp_path / name, describe({"a": array}), [array])
    index = tmp_path / "x.safetensors.index.json"
    for part, value in parts.items():
        # The index does not name the other file.
        index.write_text(json.dumps({"weight_map": {"a": part}}))
        stored = layout.find(index).tensors()["a"]
        assert stored.read_rows(0, 1) == value


@pytest.mark.parametrize(
    ("files_of", "message"),
    [
        ({"a": 1, "b": 2, "c": 2}, r"1 that the file lacks, such as c in x-2\.safe"),
        ({"a": 2, "b": 2}, r"1 that the file lacks, such as a in x-2\.safetensors;"),
    ],
)
def test_an_index_that_does_not_match_its_files_is_refused(
    tmp_path: Path, files_of: dict[str, int], message: str
):
    array = np.zeros(3, np.float32)
    for part, name in ((1, "a"), (2, "b")):
        path = tmp_path / f"x-{part}.safetensors"
        files.write(path, describe({name: array}), [array])
    weight_map = {name: f"x-{part}.safetensors" for name, part in files_of.items()}
    index = tmp_path / "x.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InputError, match=message):
        layout.find(index).tensors()


def test_a_tensor_that_the_index_does_not_list_is_refused(tmp_path: Path):
    write(tmp_path, max_file_bytes=30)
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["c"]
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"1 that the index does not list, such as c"):
        layout.find(tmp_path).tensors()


def test_what_is_no_model_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"or one other \.safetensors file, .* none;"):
        layout.find(tmp_path)
    with pytest.raises(InputError, match=r"x: expected .* found nothing"):
        layout.find(tmp_path / "x")
    (tmp_path / "model.ckpt").touch()
    with pytest.raises(InputError, match="convert other files first"):
        layout.find(tmp_path / "model.ckpt")
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"one model, got 2 files: a\.safetensors, b"):
        layout.find(tmp_path)


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be written .*; choose another"):
        write(tmp_path / "file" / "x.safetensors")
