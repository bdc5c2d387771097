"""Tests of jaxload.planning.survey."""

from pathlib import Path

import pytest

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.planning.survey import survey_manifest
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.geometry import DEFAULT

RULES = ShapeRules()
HEADER = "id,num_frames,height,width,fps\n"


def survey(path: Path, text: str, *, max_bad_share: float = 0.5):
    path.write_text(text)
    return survey_manifest(
        path, RULES, DEFAULT, max_bad_share=max_bad_share, console=Console(quiet=True)
    )


def test_bad_rows_are_counted_with_examples(tmp_path: Path):
    rows = "a,81,480,832,16\nb,81,480,832,90000\nc,1,1,1,0\nd,x,480,832,16\n"
    found = survey(tmp_path / "m.csv", HEADER + rows, max_bad_share=0.8)
    (bad,) = found.bad
    assert (found.num_rows, bad.count, bad.reason) == (4, 3, "bad metadata")
    assert bad.examples[0] == "row 1 (id 'b'): 81 frames of 480x832 at 90000 fps"
    assert bad.examples[1] == "row 2 (id 'c'): 1 frames of 1x1 at 0 fps"
    assert int(found.clips.count.sum()) == 1


def test_too_many_bad_rows_stop_the_plan(tmp_path: Path):
    rows = "a,81,480,832,16\nb,81,480,832,90000\n"
    with pytest.raises(InputError, match=r"1 of 2 rows are invalid, such as row 1"):
        survey(tmp_path / "m.csv", HEADER + rows, max_bad_share=0.1)


def test_the_order_of_rows_does_not_matter(tmp_path: Path):
    rows = [f"s{i},{1 + 16 * (i % 7)},480,832,16" for i in range(30)]
    one = survey(tmp_path / "a.csv", HEADER + "\n".join(rows) + "\n")
    other = survey(tmp_path / "b.csv", HEADER + "\n".join(rows[::-1]) + "\n")
    for name in ("frames", "height", "width", "count"):
        first, second = (getattr(s.clips, name).tolist() for s in (one, other))
        assert first == second, name


@pytest.mark.parametrize(("fps", "frames"), [(16, 5_760_000), (24, 8_640_000)])
def test_videos_of_absurd_length_are_bad_rows(tmp_path: Path, fps: int, frames: int):
    rows = f"a,{frames},480,832,{fps}\nb,{frames + 1},480,832,{fps}\n"
    found = survey(
        tmp_path / "m.csv",
        HEADER + rows + "c,2000000000,480,832,5\n",
        max_bad_share=0.7,
    )
    (bad,) = found.bad
    assert bad.count == 2
    assert bad.examples[0].startswith("row 1 (id 'b'): ")
    assert bad.examples[1] == (
        "row 2 (id 'c'): 2e+09 frames of 480x832 at 5 fps, longer than 100 hours"
    )


def test_a_histogram_counts_hours_at_the_rate_of_the_model(tmp_path: Path):
    text = "num_frames,height,width,count\n5760000,480,832,1\n5760001,480,832,7\n"
    found = survey(tmp_path / "h.csv", text)
    assert found.bad[0].count == 1
    assert "longer than 100 hours" in found.bad[0].examples[0]


def test_duplicate_ids_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="'a'"):
        survey(tmp_path / "m.csv", HEADER + "a,1,480,832,0\na,1,480,832,0\n")


def test_a_rate_that_cannot_be_read_is_a_bad_row(tmp_path: Path):
    rows = "a,81,480,832,16\nb,81,480,832,\nc,81,480,832,abc\n"
    found = survey(tmp_path / "m.csv", HEADER + rows, max_bad_share=0.9)
    assert found.bad[0].count == 2
    rows = "81,480,832,7\n"  # Rows of a histogram have the model's rate.
    found = survey(tmp_path / "h.csv", "num_frames,height,width,count\n" + rows)
    assert (found.bad, found.clips.count.tolist()) == ((), [7])


@pytest.mark.parametrize("share", [-1.0, 2.0, float("nan")])
def test_an_invalid_share_is_refused(tmp_path: Path, share):
    with pytest.raises(InputError, match=r"--max-bad-share .*expected 0.0 to 1.0"):
        survey(tmp_path / "m.csv", HEADER + "a,1,480,832,0\n", max_bad_share=share)


def test_more_clips_than_can_be_counted_are_refused(tmp_path: Path):
    text = "num_frames,height,width,count\n1000000,480,832,9000000000000000\n"
    with pytest.raises(InputError, match="expected at most 1e"):
        survey(tmp_path / "h.csv", text)


def test_videos_that_could_give_only_stills_are_left_out(tmp_path: Path):
    rows = "a,4,480,832,16\nb,8,480,832,32\nc,5,480,832,16\nd,1,480,832,0\n"
    found = survey(tmp_path / "m.csv", HEADER + rows)
    assert dict(
        zip(found.clips.frames.tolist(), found.clips.count.tolist(), strict=True)
    ) == {1: 1, 5: 1}
    (short,) = found.too_short
    assert (short.reason, short.count) == ("too short for a clip of several frames", 2)
    assert short.examples == ("clips of videos of fewer than 5 frames",)
    assert found.bad == ()
