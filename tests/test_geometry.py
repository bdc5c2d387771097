"""Prepares, plans and trains with strides and a patch other than the defaults."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from jaxload import plan as plan_command
from jaxload import prepare as prepare_command
from jaxload import train as train_command
from jaxload.codecs.haar import HaarCodec
from jaxload.config import Config
from jaxload.errors import InputError
from jaxload.models import families, preset, register
from jaxload.planning.plan import Plan, from_dict, to_json
from jaxload.runs.dataset import geometry_of
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import Geometry
from jaxload.shapes.shape import Shape

GEOMETRY = Geometry(strides=(2, 4, 4), patch=(1, 4, 4))
CODEC = "tests.media.codecs:Fine"


@pytest.fixture
def fields(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Registers a toy with larger tokens; returns fields that use it and the codec."""
    built_in = {family.name: family for family in families._BUILT_IN}
    monkeypatch.setattr(families, "_registered", built_in)
    # Imported here, because the import registers the toy.
    from tests.models import toy_family

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class CoarseConfig(toy_family.ToyConfig):
        """The toy with tokens of 4x4 latent positions."""

        patch: ClassVar[tuple[int, int, int]] = GEOMETRY.patch
        kind: Literal["coarse"] = "coarse"  # pyright: ignore[reportIncompatibleVariableOverride]

    fields: dict[str, Any] = vars(toy_family.FAMILY.presets["toy-tiny"])
    coarse = CoarseConfig(**{k: v for k, v in fields.items() if k != "kind"})
    register(
        dataclasses.replace(
            toy_family.FAMILY,
            name="coarse",
            config=CoarseConfig,
            presets={"coarse-tiny": coarse},
        )
    )
    assert preset("coarse-tiny").patch == GEOMETRY.patch
    path = tmp_path / "set"
    return ["model=coarse-tiny", f"data.codec={CODEC}", f"data.path={path}"]


def arguments(root: Path, fields: list[str], *more: str) -> list[str]:
    sets = [word for field in (*fields, *more) for word in ("--set", field)]
    return ["--config", str(root / "configs" / "debug.py"), *sets]


@pytest.mark.slow
def test_the_codec_and_the_model_determine_all_sizes(
    root: Path, fields: list[str], tmp_path: Path
):
    run = arguments(root, fields, "train.num_steps=2")
    assert not train_command.main([*run, "--workdir", str(tmp_path / "run")])
    content = json.loads((tmp_path / "run" / "plan.json").read_text())
    # 1x32x32, 5x32x32 and 9x32x48 pixels.
    assert {row["tokens"] for row in content["buckets"]} == {4, 12, 30}
    plan = from_dict(content, name="plan")
    assert {bucket.form.geometry for bucket in plan.buckets} == {GEOMETRY}
    fingerprint = json.loads((tmp_path / "set" / "preparation.json").read_text())
    assert fingerprint["geometry"] == "strides 2x4x4 and patch 1x4x4"


def test_a_list_is_planned_and_prepared_for_the_codec_and_the_model(
    root: Path, fields: list[str], tmp_path: Path
):
    listing, out = tmp_path / "list.csv", tmp_path / "plan.json"
    rows = "".join(f"s{i},4,36,40,16\n" for i in range(40))
    listing.write_text(f"id,num_frames,height,width,fps\n{rows}")
    plan = arguments(root, fields, "balance.max_tokens=64", "shapes.max_frames=3")
    assert not plan_command.main(
        [*plan, "--manifest", str(listing), "--out", str(out), "--replicas", "1"]
    )
    buckets = json.loads(out.read_text())["buckets"]
    # Three frames are the most, and sizes are multiples of 16.
    assert [row["pixels"] for row in buckets] == ["3x32x32"]
    with pytest.raises(InputError, match=r"planned for .* strides 2x4x4 and patch 1x4"):
        prepare_command.main(["--media", str(tmp_path), "--plan", str(out)])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("shapes.max_frames=4", r"shapes\.max_frames=4: expected 2k\+1; use 3"),
        ("sample.shape=1x4x6", r"sample\.shape: shape 1x4x6: .* multiples of 4 and 4"),
        ("synthetic.clips=4x32x32", r"synthetic\.clips: clip of 4x32x32: .*2k\+1"),
        ("shapes.max_pixels=255", r"shapes\.max_pixels=255: expected 256 or more"),
    ],
)
def test_sizes_that_the_codec_or_the_model_cannot_take_are_named(
    root: Path, fields: list[str], tmp_path: Path, field: str, message: str
):
    run = arguments(root, fields, field)
    with pytest.raises(InputError, match=message):
        train_command.main([*run, "--workdir", str(tmp_path / "run")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strides", [[4, 8, 8], (np.int64(4), 8, 8)])
def test_strides_of_other_types_are_converted(
    debug_config: Config, monkeypatch: pytest.MonkeyPatch, strides
):
    monkeypatch.setattr(HaarCodec, "strides", strides)
    assert json.loads(json.dumps(geometry_of(debug_config).to_dict())) == {
        "strides": [4, 8, 8],
        "patch": [1, 2, 2],
    }


@pytest.mark.parametrize("strides", [(4, 8), (0, 8, 8), "abc", None])
def test_invalid_strides_name_the_codec(
    debug_config: Config, monkeypatch: pytest.MonkeyPatch, strides
):
    monkeypatch.setattr(HaarCodec, "strides", strides)
    message = r"data\.codec=haar: strides=.*: expected three whole numbers"
    with pytest.raises(InputError, match=message):
        geometry_of(debug_config)


def test_a_plan_with_rules_that_the_codec_cannot_take_is_refused(
    plan_of: Callable[..., Plan],
):
    plan = dataclasses.replace(plan_of({Shape(1, 4, 4): 64}), rules=ShapeRules())
    content = json.loads(to_json(plan))
    assert "geometry" not in content["buckets"][0]["program"]
    assert from_dict(content, name="plan") == plan
    content["shapes"]["max_frames"] = 80
    with pytest.raises(InputError, match=r"max_frames=80: expected 4k\+1; use 77"):
        from_dict(content, name="plan")
