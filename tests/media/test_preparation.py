"""Tests of jaxload.media.preparation, parts, claim, recovery and part_tables."""

import dataclasses
import io
from pathlib import Path

import av
import numpy as np
import PIL
import pytest

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.media.claim import claim
from jaxload.media.encode_part import EncodePart
from jaxload.media.listing import MediaFile
from jaxload.media.part_tables import parts_directory, read_encoded, read_scans
from jaxload.media.parts import MIN_PARTS, cut_into_parts, marked
from jaxload.media.preparation import Preparation
from jaxload.media.recovery import Part, Recovery
from jaxload.media.runners import run_in_this_process
from jaxload.media.scan_part import ScanPart
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT
from tests.media.codecs import Batched
from tests.media.media_files import moving_pattern, write_video


def files(count: int, num_bytes: int = 10) -> list[MediaFile]:
    return [
        MediaFile(name=f"{i:06d}", num_bytes=num_bytes, caption=None)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "num_bytes", "num_parts", "largest"),
    [
        (1, 10, 1, 1),
        (50, 10, 50, 1),
        (1_000, 10, 67, 15),
        (1_000_000, 10, 245, 4_096),  # Few enough shards to hold open.
        (1_000, 3 << 30, 1_000, 1),  # Films: each on its own.
        (100_000, 100 << 20, 10_000, 10),
    ],
)
def test_parts_are_of_a_size(count: int, num_bytes: int, num_parts: int, largest: int):
    listed = files(count, num_bytes)
    parts = cut_into_parts(listed, MIN_PARTS)
    assert [file for part in parts for file in part] == listed
    assert (len(parts), max(map(len, parts))) == (num_parts, largest)


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    (tmp_path / "media").mkdir()
    parts_directory(tmp_path / "out").mkdir(parents=True)
    write_video(tmp_path / "media" / "a.mp4", moving_pattern(9, 32, 32), fps=16)
    return Preparation(
        media=tmp_path / "media",
        out=tmp_path / "out",
        codec="haar",
        text_encoder="hashed-ngrams",
        text_dim=8,
        rules=ShapeRules(),
        geometry=DEFAULT,
        sizes=((4, 4),),
    )


def listed(preparation: Preparation) -> tuple[MediaFile, ...]:
    size = (preparation.media / "a.mp4").stat().st_size
    return (MediaFile(name="a.mp4", num_bytes=size, caption="x"),)


def run(part: Part) -> None:
    quiet = Console(quiet=True)
    run_in_this_process([part], on_file=lambda: None, console=quiet)


def encode(preparation: Preparation, these: tuple[MediaFile, ...]):
    run(
        EncodePart(
            preparation=preparation,
            index=0,
            files=these,
            sizes=preparation.sizes or (),
        )
    )
    return read_encoded(preparation.out, 0)


def test_a_file_that_grew_between_scan_and_encoding_is_named(preparation: Preparation):
    these = listed(preparation)
    run(ScanPart(preparation=preparation, index=0, files=these))
    assert list(read_scans(preparation.out, 0)[0]) == ["a.mp4"]
    write_video(preparation.media / "a.mp4", moving_pattern(90, 32, 32), fps=16)
    part = encode(preparation, these)
    (problem,) = part.problems
    assert problem.reason == "changed while it was prepared"
    assert part.shard is None
    assert not list(preparation.out.glob("shard-*"))


@pytest.mark.parametrize("what", ["gone", "io"])
def test_a_file_that_cannot_be_read_does_not_stop_a_scan(
    preparation: Preparation, what: str, monkeypatch: pytest.MonkeyPatch
):
    these = listed(preparation)

    def fail(path: Path, **_):
        raise OSError(5, "Input/output error")

    if what == "io":
        monkeypatch.setattr("jaxload.media.scan_part.scan", fail)
    else:
        (preparation.media / "a.mp4").unlink()
    run(ScanPart(preparation=preparation, index=0, files=these))
    scans, (problem,) = read_scans(preparation.out, 0)
    assert not scans
    assert (problem.reason, problem.bad) == ("cannot be read", True)


def test_frames_of_a_file_that_failed_are_accounted_for(preparation: Preparation):
    write_video(preparation.media / "a.mp4", moving_pattern(30, 32, 32), fps=16)
    these = listed(preparation)
    run(ScanPart(preparation=preparation, index=0, files=these))
    whole = encode(preparation, these).frames
    assert (whole.decoded, whole.kept) == (30, 29)
    failing = EncodePart(
        preparation=Preparation(
            **{**vars(preparation), "codec": "tests.media.codecs:NotFinite"}
        ),
        index=0,
        files=these,
        sizes=preparation.sizes or (),
    )
    run(failing)
    part = read_encoded(preparation.out, 0)
    assert (part.frames.decoded, part.frames.kept, part.frames.left_out) == (30, 0, 30)
    assert "not finite in bfloat16" in part.problems[0].detail


def test_the_fingerprint_has_all_that_records_depend_on(preparation: Preparation):
    found = preparation.fingerprint()
    assert found["codec_name"] == "haar"
    assert found["text_encoder_name"] == "hashed-ngrams"
    assert found["sizes"] == "4x4"
    assert found["is_causal"] is True
    assert found["rules"]["fps"] == 16.0
    assert "max_source_pixels" not in found  # Datasets of before keep their digests.
    other = dataclasses.replace(preparation, max_source_pixels=1000)
    assert other.fingerprint()["max_source_pixels"] == 1000
    assert found["library av"] == av.__version__
    assert found["library pillow"] == PIL.__version__


# --- Claims of an output directory ---


def test_another_preparation_of_the_same_directory_is_refused(tmp_path: Path):
    claim(tmp_path, {"codec": "a"})
    claim(tmp_path, {"codec": "a"})
    with pytest.raises(InputError, match="begun with codec 'a', got 'b'"):
        claim(tmp_path, {"codec": "b"})


def test_a_claim_of_an_earlier_version_names_media_that_may_change(tmp_path: Path):
    (tmp_path / "preparation.json").write_text('{"codec": "a", "media": "3 files, x"}')
    claim(tmp_path, {"codec": "a"})


def test_a_directory_without_a_preparation_is_refused(tmp_path: Path):
    (tmp_path / "manifest.parquet").touch()
    with pytest.raises(InputError, match="was not prepared from media"):
        claim(tmp_path, {})
    (tmp_path / "preparation.json").write_text("{")
    with pytest.raises(InputError, match=r"preparation.json: not JSON .*another --out"):
        claim(tmp_path, {})


# --- Workers that die ---


def test_a_file_is_left_alone_after_two_deaths_and_no_more(preparation: Preparation):
    part = ScanPart(preparation=preparation, index=0, files=listed(preparation))
    recover = Recovery(Console(quiet=True))
    part.marker.write_text("a.mp4")
    assert recover(part, "killed") == part
    again = recover(part, "killed")
    assert again.poison == {"a.mp4": "its worker died twice"}
    with pytest.raises(InputError, match="die while they read no file"):
        recover(again, "killed")


def test_a_deadly_file_is_known_by_any_name(preparation: Preparation):
    """A marker that is read as text would hold another name."""
    part = ScanPart(preparation=preparation, index=0, files=listed(preparation))
    file = MediaFile(name="a\r\nb\x1b \u00e9.mp4", num_bytes=1, caption=None)
    out = io.StringIO()
    recover = Recovery(Console(file=out))
    for _ in marked([file], part.marker):
        again = recover(recover(part, "killed"), "killed")
        assert list(again.poison) == [file.name]
    assert r"(killed) at a\r\nb\x1b " in out.getvalue()


def test_deaths_before_the_first_file_end_it(preparation: Preparation):
    part = ScanPart(preparation=preparation, index=0, files=listed(preparation))
    recover = Recovery(Console(quiet=True))
    recover(part, "killed")
    with pytest.raises(
        InputError, match=r"while they read no file \(killed\); run with"
    ):
        recover(part, "killed")


def test_a_part_is_retried_clip_by_clip(
    preparation: Preparation, monkeypatch: pytest.MonkeyPatch
):
    """The marker then names the file to blame, if workers encode batches."""
    these = listed(preparation)
    more = preparation.media / "b.mp4"
    more.write_bytes((preparation.media / "a.mp4").read_bytes())
    these = (*these, MediaFile(name="b.mp4", num_bytes=these[0].num_bytes, caption="y"))
    run(ScanPart(preparation=preparation, index=0, files=these))
    batched = Preparation(
        **{**vars(preparation), "codec": "tests.media.codecs:Batched"}
    )
    part = EncodePart(
        preparation=batched, index=0, files=these, sizes=preparation.sizes or ()
    )
    blamed: list[str] = []
    encode = Batched.encode_batch

    def record(self: Batched, videos: np.ndarray) -> np.ndarray:
        blamed.append(part.marker.read_text() if part.marker.exists() else "")
        return encode(self, videos)

    monkeypatch.setattr(Batched, "encode_batch", record)
    run(part)
    assert blamed == [""]  # A batch of both, when all files are decoded.
    retried = Recovery(Console(quiet=True))(part, "killed")
    blamed.clear()
    run(retried)
    assert blamed == ["a.mp4", "b.mp4"]
    assert len(read_encoded(preparation.out, 0).entries) == 2
