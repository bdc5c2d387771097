"""Refuses media files whose clips would share an id, before they are encoded."""

import re

import numpy as np

from jaxload.data.unique_ids import shared_id
from jaxload.errors import InputError
from jaxload.media.cutting import num_usable
from jaxload.media.history import History
from jaxload.media.part_tables import is_scanned, read_scans
from jaxload.media.preparation import Preparation
from jaxload.shapes.cuts import cut_videos

_CLIP_ID = re.compile(r"(.*)@\d+", re.DOTALL)


def check_clip_ids(preparation: Preparation, history: History) -> None:
    """Raises InputError if two scanned files have clips of one id.

    Only a file that is called as a clip of another file can share an id, such as the
    file `a@0` beside a video `a`, whose first clip has the id `a@0`.
    """
    for name in sorted(name for name in history.files if "@" in name):
        match = _CLIP_ID.fullmatch(name)
        if match is None or match[1] not in history.files:
            continue
        shared = _ids(preparation, history, name) & _ids(preparation, history, match[1])
        if shared:
            raise InputError(shared_id(match[1], name, min(shared)))


def _ids(preparation: Preparation, history: History, name: str) -> set[str]:
    """Returns the ids of a file's clips; none if the file is not scanned yet."""
    out, rules, part = preparation.out, preparation.rules, history.files[name].part
    if not is_scanned(out, part) or name not in (scans := read_scans(out, part)[0]):
        return set()
    cuts = cut_videos(np.array([num_usable(scans[name], rules)]), rules)
    return {clip.id for clip in cuts.clips(0, name)}
