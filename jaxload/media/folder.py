"""Finds the media files of a folder and the caption of each."""

import errno
import heapq
import os
import posixpath
import stat
from pathlib import Path

from jaxload.errors import InputError
from jaxload.media.captions import (
    TABLE_NAMES,
    NameIndex,
    as_utf8,
    read_table,
    read_text,
    shown,
)
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.problem import NO_CAPTION, Problem

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


def list_media(directory: Path, captions: Path | None = None) -> Listing:
    """Lists the media in a folder and its subfolders, with their captions.

    A text file beside a media file takes precedence over tables. Among tables, the
    first row that names a file is used: rows of `captions` come first, with paths
    relative to `directory`, then rows of the metadata files in order of name, with
    paths relative to the metadata file's folder.
    """
    tree = _Tree(directory)
    tree.walk()
    if not tree.sizes:
        problem = f" ({tree.problems[0].reason})" if tree.problems else ""
        raise InputError(
            f"media folder {shown(directory)}: expected images or clips in it, found "
            f"none{problem}; check the path"
        )
    pairing = _Pairing(tree)
    pairing.add_texts()
    if captions is not None:
        pairing.add_table(captions, shown(captions), folder="")
    for name in sorted(tree.tables):
        path = directory / name
        if captions is None or not path.exists() or not path.samefile(captions):
            pairing.add_table(path, name, folder=posixpath.dirname(name))
    return pairing.listing()


class _Tree:
    """Files below a folder: possible media, caption texts and caption tables."""

    def __init__(self, directory: Path):
        self.directory = directory
        # Bytes of each possible media file; None if a problem makes the file unusable.
        self.sizes: dict[str, int | None] = {}
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
        try:
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
        elif is_media:
            self._add_media(entry, name)
        elif os.path.isfile(entry.path) or not os.path.exists(entry.path):
            # A broken link is kept: reading it reports the file that has no caption.
            (self.tables if is_table else self.texts).append(name)

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


class _Pairing:
    """Assigns captions to files; the first caption assigned to a file is used."""

    def __init__(self, tree: _Tree):
        self._tree = tree
        self._names = NameIndex(tree.sizes)
        # For each media file, its caption (None if unreadable), and the source of that
        # caption: a file, and a row if the file is a table.
        self._used: dict[str, tuple[str | None, tuple[str, str]]] = {}
        self._unused: dict[str, list[tuple[str, str]]] = {}
        roots = {os.path.abspath(tree.directory), os.path.realpath(tree.directory)}
        self._roots = tuple(root.rstrip("/") + "/" for root in roots)

    def add_texts(self) -> None:
        """Reads caption texts: first a.mp4.txt, for a.mp4, then a.txt, for all a.*."""
        by_stem = NameIndex(self._tree.sizes, key=_stem)
        inexact = []
        for text in sorted(self._tree.texts):
            exact = self._names.find(_stem(text))[:1]
            if exact:
                self._add_text(text, exact)
            else:
                inexact.append(text)
        for text in inexact:
            files = by_stem.find(_stem(text))
            rest = [name for name in files if name not in self._used]
            if not files:
                self._tree.note(text, "caption with no file", bad=False)
            elif len(rest) > 1:
                reason = "several files share one caption"
                self._tree.note(text, reason, ", ".join(rest), bad=False)
            self._add_text(text, rest or files)

    def _add_text(self, text: str, files: list[str]) -> None:
        if not files:
            return  # Not read: the text is not a caption, and may be long.
        caption, reason, detail = None, "", ""
        try:
            caption = read_text(self._tree.directory / text)
        except UnicodeDecodeError as error:
            reason = "caption is not UTF-8"
            detail = f"{text}: byte {error.object[error.start]:#04x}"
        except OSError as error:
            reason = "caption cannot be read"
            detail = f"{text}: {error.strerror}"
        for name in files:
            if caption is None and name not in self._used:
                self._tree.note(name, reason, detail)
            self._give(name, caption, (text, ""))

    def add_table(self, path: Path, name: str, folder: str) -> None:
        """Reads a table of captions, with paths relative to a folder of the tree."""
        rows, problems = read_table(path, name)
        self._tree.problems += problems
        unit = "row" if path.suffix.lower() == ".parquet" else "line"
        for row in rows:
            source = (name, f", {unit} {row.number}")
            file, below = self._locate(row.path, folder)
            if file is None:
                reason = "caption with no file"
                if below is None:
                    reason = "path leads outside the folder"
                self._tree.note(below or row.path, reason, "".join(source), bad=False)
            elif row.caption is not None:
                self._give(file, row.caption, source)

    def _locate(self, path: str, folder: str) -> tuple[str | None, str | None]:
        """Returns the file that a path means, and the path relative to the root.

        The file is None if it does not exist; both are None if the path is outside.
        """
        below = None
        # On Windows a backslash separates folders; on Linux it may be part of a name.
        for spelling in dict.fromkeys((path, path.replace("\\", "/"))):
            below = posixpath.normpath(posixpath.join(folder, spelling))
            if below.startswith("/"):
                root = next((r for r in self._roots if below.startswith(r)), None)
                if root is None:
                    return None, None
                below = below[len(root) :]
            if below == ".." or below.startswith("../"):
                return None, None
            files = self._names.find(below)
            if files:
                return files[0], below
        return None, below

    def _give(self, name: str, caption: str | None, source: tuple[str, str]) -> None:
        used, _ = self._used.setdefault(name, (caption, source))
        if used != caption:
            self._unused.setdefault(name, []).append(source)

    def listing(self) -> Listing:
        """Returns all files that can be read, with their captions, and all problems.

        Files whose caption cannot be read are left out.
        """
        files = []
        for name, num_bytes in sorted(self._tree.sizes.items()):
            caption, source = self._used.get(name, (None, None))
            if num_bytes is None or (source and caption is None):
                continue
            files.append(MediaFile(name=name, num_bytes=num_bytes, caption=caption))
            if source is None:
                self._tree.note(name, NO_CAPTION, bad=False)
            elif name in self._unused:
                first, *more = map("".join, self._unused[name])
                detail = f"used {''.join(source)}, not {first}"
                detail += f" and {len(more)} more" if more else ""
                self._tree.note(name, "several captions", detail, bad=False)
        for names in self._names.by_nfc.values():
            if len(names) > 1:
                # Escaped, because the names look the same on a screen.
                detail = ", ".join(map(ascii, names))
                reason = "names differ only in Unicode form"
                self._tree.note(names[0], reason, detail, bad=False)
        return Listing(files=tuple(files), problems=tuple(sorted(self._tree.problems)))


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]
