"""Finds the media files of a folder and the caption of each."""

import os
import posixpath
from pathlib import Path

from jaxload.codecs.text_encoder import MAX_CHARACTERS
from jaxload.errors import InputError
from jaxload.media.caption_tables import read_table
from jaxload.media.captions import (
    Caption,
    NameIndex,
    read_text,
    shown,
)
from jaxload.media.listing import Listing, MediaFile
from jaxload.media.problem import CUT_CAPTION, EMPTY_CAPTION, NO_CAPTION
from jaxload.media.tree import Tree


def list_media(
    directory: Path,
    captions: Path | None = None,
    *,
    max_characters: int = MAX_CHARACTERS,
    follow_links: bool = False,
) -> Listing:
    """Lists the media in a folder and its subfolders, with their captions.

    A text file beside a media file takes precedence over tables. Among tables, the
    first row that names a file is used: rows of `captions` come first, with paths
    relative to `directory`, then rows of the metadata files in order of name, with
    paths relative to the metadata file's folder. A metadata file that cannot be read is
    reported and ignored, but `captions` must be readable. Captions are cut to
    `max_characters`. Links that lead out of the folder are reported, and ignored
    unless `follow_links` is set.
    """
    tree = Tree(directory, follow_links=follow_links)
    tree.walk()
    if not tree.sizes:
        problem = f" ({tree.problems[0].reason})" if tree.problems else ""
        raise InputError(
            f"media folder {shown(directory)}: expected images or clips in it, found "
            f"none{problem}; check the path"
        )
    pairing = _Pairing(tree, max_characters)
    pairing.add_texts()
    if captions is not None:
        pairing.add_table(captions, shown(captions), folder="")
    for name in sorted(tree.tables):
        path = directory / name
        if captions is None or not path.exists() or not path.samefile(captions):
            pairing.add_table_of_folder(path, name)
    return pairing.listing()


class _Pairing:
    """Assigns captions to files; the first caption assigned to a file is used."""

    def __init__(self, tree: Tree, max_characters: int):
        self._tree = tree
        self._max_characters = max_characters
        self._names = NameIndex(tree.sizes)
        # For each media file, its caption (None if unreadable), and the source of that
        # caption: a file, and a row if the file is a table.
        self._used: dict[str, tuple[Caption | None, tuple[str, str]]] = {}
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
            path = self._tree.directory / text
            caption = read_text(path, self._max_characters)
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

    def add_table_of_folder(self, path: Path, name: str) -> None:
        """Reads a table of the folder; ignores a foreign file of the same name."""
        try:
            self.add_table(path, name, folder=posixpath.dirname(name))
        except InputError as error:
            reason = "table of captions cannot be used"
            self._tree.note(name, reason, str(error), bad=False)

    def add_table(self, path: Path, name: str, folder: str) -> None:
        """Reads a table of captions, with paths relative to a folder of the tree."""
        rows, problems = read_table(path, name, self._max_characters)
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

    def _give(
        self, name: str, caption: Caption | None, source: tuple[str, str]
    ) -> None:
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
            text = None if caption is None else caption.text
            files.append(
                MediaFile(
                    name=name,
                    num_bytes=num_bytes,
                    caption=text,
                    mtime_ns=self._tree.times[name],
                )
            )
            if caption is None or source is None:
                self._tree.note(name, NO_CAPTION, bad=False)
            else:
                self._note_caption(name, caption, "".join(source))
        for names in self._names.by_nfc.values():
            if len(names) > 1:
                # Escaped, because the names look the same on a screen.
                detail = ", ".join(map(ascii, names))
                reason = "names differ only in Unicode form"
                self._tree.note(names[0], reason, detail, bad=False)
        return Listing(files=tuple(files), problems=tuple(sorted(self._tree.problems)))

    def _note_caption(self, name: str, caption: Caption, source: str) -> None:
        if not caption.text:
            self._tree.note(name, EMPTY_CAPTION, source, bad=False)
        if caption.is_cut:
            detail = f"{source}: the first {len(caption.text):,} characters are used"
            self._tree.note(name, CUT_CAPTION, detail, bad=False)
        if name in self._unused:
            first, *more = map("".join, self._unused[name])
            detail = f"used {source}, not {first}"
            detail += f" and {len(more)} more" if more else ""
            self._tree.note(name, "several captions", detail, bad=False)


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]
