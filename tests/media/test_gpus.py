"""Tests of jaxload.media.gpus."""

from pathlib import Path

import pytest

from jaxload.errors import InputError
from jaxload.media import gpus


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulates a machine with three GPUs and four cores."""
    folder = tmp_path / "gpus"
    for name in ("0000:07:00.0", "0000:0f:00.0", "0000:47:00.0"):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(gpus, "_NVIDIA", folder)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("2, GPU-8", ["2", "GPU-8"]),
        ("1,3,0", ["1"]),  # CUDA ignores all names after an invalid one.
        ("-1", []),
        ("", []),
    ],
)
def test_each_visible_gpu_has_an_encoder(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.visible_gpus() == expected
    by_default = expected if len(expected) > 1 else [None]
    assert gpus.encoder_devices(None) == by_default
    assert gpus.encoder_devices(1) == [None]
    if len(expected) > 1:
        assert gpus.encoder_devices(2) == expected[:2]


@pytest.mark.parametrize(
    ("visible", "num_encoders", "message"),
    [
        (None, 64, "--encoders 64: expected at most 3, one for each visible GPU"),
        ("1", 2, "--encoders 2: expected at most 1, one for each visible GPU"),
        ("", 5, "--encoders 5: expected at most 4, one for each core, as no GPU is"),
    ],
)
def test_more_encoders_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    num_encoders: int,
    message: str,
):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(InputError, match=message):
        gpus.encoder_devices(num_encoders)


def test_without_a_gpu_encoders_run_on_cores(machine: Path):
    for folder in machine.iterdir():
        folder.rmdir()
    assert gpus.encoder_devices(None) == [None]
    assert gpus.encoder_devices(4) == [None] * 4


def test_a_driver_that_lists_no_gpu_trusts_the_variable(
    machine: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpus, "_NVIDIA", machine / "none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert gpus.encoder_devices(None) == ["0", "1"]
