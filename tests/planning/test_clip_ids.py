"""Tests of jaxload.planning.clip_ids."""

import collections
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from jaxload.console import Console
from jaxload.errors import InputError
from jaxload.planning.clip_ids import ClipIds
from jaxload.planning.survey import survey_manifest
from jaxload.shapes.config import ShapeRules
from jaxload.shapes.cover import Cover, cover
from jaxload.shapes.cuts import cut_videos
from jaxload.shapes.geometry import DEFAULT
from jaxload.shapes.shape import Shape

RULES = ShapeRules()
HEADER = "id,num_frames,height,width,fps\n"


def write(path: Path, *rows: str) -> Path:
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


def cover_of(path: Path) -> Cover:
    clips = survey_manifest(
        path, RULES, DEFAULT, max_bad_share=0.5, console=Console(quiet=True)
    ).clips
    return cover(clips, rules=RULES, max_shapes=8, min_samples=1)


def all_clips(ids: ClipIds, shape: int) -> list[tuple[str | int, int]]:
    found = ids.look_up(shape, np.arange(ids.num_clips(shape)))
    return list(zip(*found, strict=True))


def test_ids_and_starts_name_each_clip_once(tmp_path: Path):
    rows = ("long,400,480,832,32", "short,17,480,832,16", "image,1,480,832,0")
    path = write(tmp_path / "m.csv", *rows)
    chosen = cover_of(path)
    ids = ClipIds(path, RULES, chosen.shapes, DEFAULT)
    found = {shape: all_clips(ids, i) for i, shape in enumerate(chosen.shapes)}
    # 400 frames at 32 fps are 200 at 16: two full clips and one of 37.
    assert found == {
        Shape.of_pixels((81, 480, 832), DEFAULT): [("long", 0), ("long", 81)],
        Shape.of_pixels((37, 480, 832), DEFAULT): [("long", 162)],
        Shape.of_pixels((17, 480, 832), DEFAULT): [("short", 0)],
        Shape.of_pixels((1, 480, 832), DEFAULT): [("image", 0)],
    }
    assert ids.look_up(
        chosen.shapes.index(Shape.of_pixels((81, 480, 832), DEFAULT)),
        np.array([1, 0, 1]),
    )[1] == [81, 0, 81]


def test_a_file_called_as_a_clip_is_told_apart(tmp_path: Path):
    path = write(tmp_path / "m.csv", "a,162,480,832,16", "a@0,81,480,832,16")
    (shape,) = cover_of(path).shapes
    ids = ClipIds(path, RULES, (shape,), DEFAULT)
    assert all_clips(ids, 0) == [("a", 0), ("a", 81), ("a@0", 0)]


def test_a_row_without_id_is_its_number(tmp_path: Path):
    rows = ("a,81,480,832,16", ",81,480,832,16", "1,81,480,832,16")
    path = write(tmp_path / "m.csv", *rows)
    ids = ClipIds(path, RULES, cover_of(path).shapes, DEFAULT)
    assert all_clips(ids, 0) == [("a", 0), (1, 0), ("1", 0)]


def test_all_clips_are_those_of_the_cuts(tmp_path: Path):
    rng = np.random.default_rng(0)
    sizes = [(480, 832), (720, 1280), (512, 512), (16, 900)]
    frames = rng.choice([1, 3, 20, 81, 85, 86, 170, 400, 5_000], 300).tolist()
    drawn = [(i, n, *sizes[rng.integers(4)]) for i, n in enumerate(frames)]
    rows = (f"s{i},{n},{height},{width},16" for i, n, height, width in drawn)
    path = write(tmp_path / "m.csv", *rows, "bad,-1,480,832,16")
    chosen = cover_of(path)
    ids = ClipIds(path, RULES, chosen.shapes, DEFAULT)
    counts = tuple(map(ids.num_clips, range(len(chosen.shapes))))
    assert counts == chosen.num_samples
    found = collections.Counter(
        clip for shape in range(len(counts)) for clip in all_clips(ids, shape)
    )
    cuts = cut_videos(np.array(frames), RULES)
    expected = {
        (f"s{i}", clip.first)
        for i, num_frames, *_ in drawn
        for clip in cuts.clips(i, f"s{i}")
        if num_frames != 3  # A video that could give only a still.
    }
    assert max(found.values()) == 1
    assert found.keys() <= expected
    left_out = sum(x.count for x in chosen.left_out)
    assert len(found) + left_out == len(expected)


def test_memory_does_not_grow_with_the_clips(tmp_path: Path):
    rows = (f"v{i},5760000,480,832,16" for i in range(20))  # 1.4 million clips.
    path = write(tmp_path / "m.csv", *rows)
    chosen = cover_of(path)
    tracemalloc.start()
    ids = ClipIds(path, RULES, chosen.shapes, DEFAULT)
    last = len(chosen.shapes) - 1
    found = ids.look_up(last, np.array([ids.num_clips(last) - 1]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == (["v19"], [71_110 * 81])
    assert sum(map(ids.num_clips, range(len(chosen.shapes)))) > 1_400_000
    assert peak < 5_000_000


def test_a_histogram_has_no_ids(tmp_path: Path):
    path = tmp_path / "h.csv"
    path.write_text("num_frames,height,width,count\n81,480,832,500\n")
    with pytest.raises(InputError, match="a histogram has no ids"):
        ClipIds(path, RULES, (), DEFAULT)
