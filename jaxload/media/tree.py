"""Finds the files below a media folder: possible media, captions and tables."""

import errno
import heapq
import os
import posixpath
import stat
from pathlib import Path

from jaxload.errors import InputError
from jaxload.media.caption_tables import TABLE_NAMES
from jaxload.media.captions import as_utf8, shown
from jaxload.media.problem import Problem

OUTSIDE = "link out of the media folder, see data.follow_links"

_TEXT = ".txt"
# Suffixes of files that are not media. FFmpeg would decode those of the first line as
# videos of text.
_NOT_MEDIA = """
    ans art asc diz ice nfo txt vt
    csv json jsonl ndjson parquet toml tsv xml yaml yml
    cfg htm html ini ipynb log md md5 pdf py rst sh sha256 srt vtt
"""
NOT_MEDIA = frozenset(f".{suffix}" for suffix in _NOT_MEDIA.split())
# Files and folders that operating systems leave behind, in lower case.
LITTER = frozenset(
    ["thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found"]
)


class Tree:
    """Files below a folder: possible media, caption texts and caption tables."""

    def __init__(self, directory: Path, *, follow_links: bool):
        self.directory = directory
        self._root = os.path.realpath(directory)
        self._follow_links = follow_links
        # Bytes of each possible media file; None if a problem makes the file unusable.
        self.sizes: dict[str, int | None] = {}
        self.times: dict[str, int] = {}  # Time stamps of the usable files.
        self.texts: list[str] = []
        self.tables: list[str] = []
        self.problems: list[Problem] = []
        self._folders = [""]
        self._links: list[str] = []

    def note(self, name: str, reason: str, detail: str = "", bad: bool = True) -> None:
        """Records a problem."""
        self.problems.append(
            Problem(name=as_utf8(name), reason=reason, detail=detail, bad=bad)
        )

    def walk(self) -> None:
        """Lists all files; visits a folder once, even if several links lead to it."""
        seen: dict[tuple[int, int], str] = {}
        while self._folders or self._links:
            # Links come last, so that files are named by their real path. Heaps give a
            # fixed order: of two links to a folder, every machine follows the same.
            folder = heapq.heappop(self._folders or self._links)
            path = os.path.join(self.directory, folder)
            try:
                status = os.stat(path)
                first = seen.setdefault((status.st_dev, status.st_ino), folder)
                if first != folder:
                    detail = f"same folder as {as_utf8(first) or 'the media folder'}"
                    self.note(folder, "folder is listed already", detail, bad=False)
                    continue
                with os.scandir(path) as entries:
                    for entry in entries:
                        self._add(entry, posixpath.join(folder, entry.name))
            except OSError as error:
                if not folder:
                    raise InputError(
                        f"media folder {shown(self.directory)}: expected a folder "
                        f"that can be read, got {error.strerror!r}; check the path"
                    ) from error
                self.note(folder, "cannot be read", error.strerror or "")

    def _add(self, entry: os.DirEntry[str], name: str) -> None:
        if entry.name.startswith(".") or entry.name.lower() in LITTER:
            return
        is_outside = entry.is_symlink() and self._leads_outside(entry.path)
        try:
            if entry.is_dir() and is_outside:
                self._note_outside(entry, name, bad=True)
                return
            if entry.is_dir():
                folders = self._links if entry.is_symlink() else self._folders
                heapq.heappush(folders, name)
                return
        except OSError:
            pass  # A broken link is handled below, by its suffix.
        suffix = posixpath.splitext(entry.name)[1].lower()
        is_table = entry.name.lower() in TABLE_NAMES
        is_media = suffix not in NOT_MEDIA
        if not (is_media or is_table or suffix == _TEXT):
            return
        if as_utf8(name) != name:
            # A manifest is UTF-8 and cannot hold the name.
            self.note(name, "name is not UTF-8", bad=is_media)
        elif is_outside:
            self._note_outside(entry, name, bad=is_media)
            if is_media:
                self.sizes[name] = None
        elif is_media:
            self._add_media(entry, name)
        elif os.path.isfile(entry.path) or not os.path.exists(entry.path):
            # A broken link is kept: reading it reports the file that has no caption.
            (self.tables if is_table else self.texts).append(name)

    def _leads_outside(self, link: str) -> bool:
        if self._follow_links:
            return False
        target = os.path.realpath(link)
        return os.path.commonpath([self._root, target]) != self._root

    def _note_outside(self, entry: os.DirEntry[str], name: str, *, bad: bool) -> None:
        self.note(name, OUTSIDE, f"to {shown(os.readlink(entry.path))}", bad=bad)

    def _add_media(self, entry: os.DirEntry[str], name: str) -> None:
        self.sizes[name] = None
        try:
            status = entry.stat()
        except OSError as error:
            is_broken = error.errno in (errno.ENOENT, errno.ELOOP)
            reason = "broken link" if is_broken else "cannot be read"
            self.note(name, reason, error.strerror or "")
            return
        if not stat.S_ISREG(status.st_mode):
            self.note(name, "not a regular file")
        elif not os.access(entry.path, os.R_OK, effective_ids=True):
            self.note(name, "cannot be read", os.strerror(errno.EACCES))
        else:
            self.sizes[name] = status.st_size
            self.times[name] = status.st_mtime_ns
