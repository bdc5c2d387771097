"""Tests that docs/data.md lists what `prepare` reports."""

import re
from pathlib import Path

from jaxload.media import cutting, part_tables, problem, tree, video_frames
from jaxload.shapes import clips, cover
from tests.media.test_untrusted_media import REASONS

# Notes and problems that are named where they are found.
_LITERAL = re.compile(r'(?:reason ?= ?|note\(\w+, )"([^"]+)"')


def words_of(path: Path) -> str:
    return " ".join(path.read_text().split())


def test_every_reason_is_in_the_docs(root: Path):
    media = root / "jaxload" / "media"
    literal = {
        reason
        for path in media.glob("*.py")
        for reason in _LITERAL.findall(path.read_text())
    }
    named = {
        *(cutting.TOO_SLOW, cutting.BAD_TIMES, clips.TOO_SHORT_VIDEO),
        *(cover.TOO_SMALL, cover.ASPECT),
        *(problem.NO_CAPTION, problem.EMPTY_CAPTION, problem.CUT_CAPTION),
        *(video_frames.HDR, video_frames.WIDE_COLORS, video_frames.INTERLACED),
        *(part_tables.FAILED, part_tables.WORKER_DIED, part_tables.ENCODER_DIED),
        *(tree.OUTSIDE, "damaged, used up to the damage"),
    }
    docs = words_of(root / "docs" / "data.md")
    reasons = literal | named | REASONS
    assert len(reasons) > 40
    assert {reason for reason in reasons if f"`{reason}`" not in docs} == set()


def test_every_reason_of_the_readers_is_known_to_the_fuzz_tests(root: Path):
    source = "".join(p.read_text() for p in (root / "jaxload" / "media").glob("*.py"))
    literal = set(re.findall(r'MediaError\(\s*"([^"]+)"', source))
    names = r'^(?:DAMAGED|NOT_MEDIA|CHANGED) = "([^"]+)"'
    assert literal | set(re.findall(names, source, re.M)) == REASONS
