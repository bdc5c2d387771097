"""Tests of jaxload.media.folder: files found, and their captions."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxload.errors import InputError
from jaxload.media.folder import list_media
from jaxload.media.listing import Listing, MediaFile

NFC, NFD = "caf\u00e9", "cafe\u0301"
NOBODY = 65534


def make(folder: Path, *names: str, **texts: str | bytes) -> Path:
    """Writes files of three bytes, and files with a text; `a__txt` means a.txt."""
    content = {name: b"..." for name in names}
    for name, text in texts.items():
        name = name.replace("__", ".")
        content[name] = text if isinstance(text, bytes) else text.encode()
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def captions_of(listing: Listing) -> dict[str, str | None]:
    return {file.name: file.caption for file in listing.files}


def problems_of(listing: Listing, *, but: str = "no caption") -> list[tuple]:
    assert list(listing.problems) == sorted(listing.problems)
    return [dataclasses.astuple(p) for p in listing.problems if p.reason != but]


def test_every_regular_file_may_be_media(tmp_path: Path):
    names = ["b.mp4", "a.PNG", "B.mp4", "sub/deep/x", "sub.d/y.unknown", "z.tar.gz"]
    litter = ["a.md", "x.json", "x.YAML", "x.nfo", "sub/Thumbs.db", "desktop.ini"]
    hidden = [".DS_Store", "._b.mp4", ".git/x.mp4", "sub/.hidden/x.mp4", "@eaDir/x.jpg"]
    listing = list_media(make(tmp_path, *names, *litter, *hidden))
    assert [file.name for file in listing.files] == sorted(names)
    assert {file.num_bytes for file in listing.files} == {3}
    assert captions_of(listing) == dict.fromkeys(names)
    assert [dataclasses.astuple(p) for p in listing.problems] == [
        (name, "no caption", "", False) for name in sorted(names)
    ]


def test_the_folder_may_be_hidden_and_the_path_relative(tmp_path: Path, monkeypatch):
    make(tmp_path / ".media", "a.mp4", metadata__csv="file,text\na.mp4,x\n")
    monkeypatch.chdir(tmp_path)
    assert captions_of(list_media(Path(".media"))) == {"a.mp4": "x"}


def test_names_may_hold_anything(tmp_path: Path):
    emoji, hebrew, chinese = "\U0001f3ac", "\u05e7\u05dc\u05d8", "\u732b \u72d7"
    names = [emoji, hebrew, chinese, NFD, "\u202e.x", "a\nb.mp4", "a\\b.mp4", " .mp4"]
    make(tmp_path, *names)
    for name in names:
        (tmp_path / f"{name}.txt").write_text(name)
    listing = list_media(tmp_path)
    assert [file.name for file in listing.files] == sorted(names)
    assert captions_of(listing) == {name: " ".join(name.split()) for name in names}
    assert listing.problems == ()


def test_names_that_are_not_utf8_are_left_out(tmp_path: Path):
    for name in (b"\xff.mp4", b"\xff.txt", b"caf\xe9/x.mp4", b"caf\xe9/metadata.csv"):
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    listing = list_media(make(tmp_path, "a.mp4", a__txt="x"))
    assert captions_of(listing) == {"a.mp4": "x"}
    reason = "name is not UTF-8"
    assert problems_of(listing) == [
        (r"\xff.mp4", reason, "", True),
        (r"\xff.txt", reason, "", False),
        (r"caf\xe9/metadata.csv", reason, "", False),
        (r"caf\xe9/x.mp4", reason, "", True),
    ]


def test_links_are_followed_once(tmp_path: Path):
    make(tmp_path / "out", "x.mp4", "deep/y.mp4")
    media = make(tmp_path / "media", "real/a.mp4")
    (media / "file.mp4").symlink_to(media / "real/a.mp4")
    links = {"b": "out", "c": "out/deep", "d": "out", "a": "media/real", "e": "media"}
    for name, target in links.items():
        (media / name).symlink_to(tmp_path / target)
    (tmp_path / "out/deep/loop").symlink_to("..")
    listing = list_media(media, follow_links=True)
    names = [file.name for file in listing.files]
    assert names == ["b/deep/y.mp4", "b/x.mp4", "file.mp4", "real/a.mp4"]
    reason = "folder is listed already"
    assert problems_of(listing) == [
        ("a", reason, "same folder as real", False),
        ("b/deep/loop", reason, "same folder as b", False),
        ("c", reason, "same folder as b/deep", False),
        ("d", reason, "same folder as b", False),
        ("e", reason, "same folder as the media folder", False),
    ]


def test_links_out_of_the_folder_are_told_and_not_followed(tmp_path: Path):
    # A folder whose name merely begins like the other's.
    make(tmp_path / "media2", "x.mp4", "deep/y.mp4", secret__txt="not for you")
    make(tmp_path / "media2", metadata__csv="file,text\na.mp4,1\n")
    media = make(tmp_path / "media", "a.mp4", "sub/b.mp4", "c.mp4")
    links = {
        "folder": "media2",
        "deep": "media2/deep",
        "parent": ".",
        "clip.mp4": "media2/x.mp4",
        "gone.mp4": "media2/gone.mp4",
        "a.txt": "media2/secret.txt",
        "metadata.csv": "media2/metadata.csv",
        "notes.md": "media2/secret.txt",
        "inside": "media/sub",
        "inside.mp4": "media/a.mp4",
    }
    for name, target in links.items():
        (media / name).symlink_to(tmp_path / target)
    (media / "chain.mp4").symlink_to("clip.mp4")
    (media / "up.mp4").symlink_to("sub/../../media2/x.mp4")
    listing = list_media(media)
    names = dict.fromkeys(["a.mp4", "c.mp4", "inside.mp4", "sub/b.mp4"])
    assert captions_of(listing) == names
    reason = "link out of the media folder, see data.follow_links"
    assert problems_of(listing) == [
        ("a.txt", reason, f"to {tmp_path}/media2/secret.txt", False),
        ("chain.mp4", reason, "to clip.mp4", True),
        ("clip.mp4", reason, f"to {tmp_path}/media2/x.mp4", True),
        ("deep", reason, f"to {tmp_path}/media2/deep", True),
        ("folder", reason, f"to {tmp_path}/media2", True),
        ("gone.mp4", reason, f"to {tmp_path}/media2/gone.mp4", True),
        ("inside", "folder is listed already", "same folder as sub", False),
        ("metadata.csv", reason, f"to {tmp_path}/media2/metadata.csv", False),
        ("parent", reason, f"to {tmp_path}", True),
        ("up.mp4", reason, "to sub/../../media2/x.mp4", True),
    ]
    assert listing.num_found == 4 + 7
    followed = {file.name for file in list_media(media, follow_links=True).files}
    assert {"chain.mp4", "clip.mp4", "deep/y.mp4", "folder/x.mp4"} <= followed


def test_a_folder_of_nothing_but_links_out_of_it_is_an_error(tmp_path: Path):
    make(tmp_path / "other", "a.mp4")
    make(tmp_path / "media")
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "folder").symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match=r"found none \(link out of .*follow_links\)"):
        list_media(tmp_path / "media")


def test_loops_of_links_end(tmp_path: Path):
    media = make(tmp_path / "media", "a.mp4", "sub/deep/b.mp4")
    for name, target in {
        "here": ".",
        "sub/up": "..",
        "sub/deep/top": "../..",
        "self": "self",
        "self.mp4": "self.mp4",
        "one": "two",
        "two": "one",
    }.items():
        (media / name).symlink_to(target)
    listed = "folder is listed already"
    for follow in (False, True):
        listing = list_media(media, follow_links=follow)
        assert [file.name for file in listing.files] == ["a.mp4", "sub/deep/b.mp4"]
        reasons = {name: reason for name, reason, *_ in problems_of(listing)}
        assert reasons == {
            **dict.fromkeys(["here", "sub/up", "sub/deep/top"], listed),
            **dict.fromkeys(["self", "self.mp4", "one", "two"], "broken link"),
        }


def test_broken_links_and_odd_files_are_told(tmp_path: Path):
    make(tmp_path, "a.mp4", b__txt="of a lost file")
    (tmp_path / "b.mp4").symlink_to("none")
    (tmp_path / "loop.mp4").symlink_to("loop.mp4")
    (tmp_path / "a.txt").symlink_to("none")
    (tmp_path / "notes.md").symlink_to("none")
    os.mkfifo(tmp_path / "pipe.mp4")
    os.mkfifo(tmp_path / "pipe.txt")
    listing = list_media(tmp_path)
    assert listing.files == ()
    missing = "No such file or directory"
    assert problems_of(listing) == [
        ("a.mp4", "caption cannot be read", f"a.txt: {missing}", True),
        ("b.mp4", "broken link", missing, True),
        ("loop.mp4", "broken link", "Too many levels of symbolic links", True),
        ("pipe.mp4", "not a regular file", "", True),
    ]


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Drops root privileges, so that file permissions apply."""
    user = os.geteuid()
    if user == 0:
        try:
            os.seteuid(NOBODY)
        except OSError as error:
            pytest.skip(f"root that cannot become another user: {error}")
    try:
        yield
    finally:
        os.seteuid(user)


def test_what_may_not_be_read_is_told():
    # Not in tmp_path, whose parents only its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        folder = make(Path(name), "a.mp4", "b.mp4", "c.mp4", "sub/d.mp4", c__txt="x")
        folder.chmod(0o755)
        locked = [folder / name for name in ("b.mp4", "c.txt", "sub")]
        for path in locked:
            path.chmod(0)
        with unprivileged():
            listing = list_media(folder)
        locked[-1].chmod(0o755)
    assert captions_of(listing) == {"a.mp4": None}
    denied = "Permission denied"
    assert problems_of(listing) == [
        ("b.mp4", "cannot be read", denied, True),
        ("c.mp4", "caption cannot be read", f"c.txt: {denied}", True),
        ("sub", "cannot be read", denied, True),
    ]


def test_text_files_are_captions(tmp_path: Path):
    make(tmp_path, "a.mp4", "sub/a.mp4", "b.x.mp4", "c", "d.mp4", a__txt=" of\n a ")
    make(tmp_path, b__x__TXT="of b", c__txt="of c", d__mp4__txt=" \n")
    listing = list_media(tmp_path)
    assert captions_of(listing) == {
        "a.mp4": "of a",
        "b.x.mp4": "of b",
        "c": "of c",
        "d.mp4": "",
        "sub/a.mp4": None,
    }
    assert problems_of(listing) == [("d.mp4", "empty caption", "d.mp4.txt", False)]


def test_long_captions_are_cut_and_told(tmp_path: Path):
    make(tmp_path, "a.mp4", "b.mp4", "c.mp4", a__txt="a cat " * 10, b__txt="a cat")
    make(tmp_path, metadata__jsonl='{"file": "c.mp4", "text": "a cat on a mat"}\n')
    listing = list_media(tmp_path, max_characters=9)
    texts = {"a.mp4": "a cat a", "b.mp4": "a cat", "c.mp4": "a cat on"}
    assert captions_of(listing) == texts
    reason, rest = "caption cut at the text encoder's limit", "characters are used"
    assert problems_of(listing) == [
        ("a.mp4", reason, f"a.txt: the first 7 {rest}", False),
        ("c.mp4", reason, f"metadata.jsonl, line 1: the first 8 {rest}", False),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metadata.csv", b"id;age\n7;3\n", "expected one column with the file"),
        ("metadata.csv", b"\xff\xfe", "expected UTF-8"),
        ("metadata.csv", b'file,text\na.mp4,"1\nb.mp4,2\n', "a quote that is not"),
        ("metadata.jsonl", b"[1, 2]\n", "no row can be read"),
        ("metadata.parquet", b"PAR1", "expected a Parquet file"),
    ],
)
def test_a_foreign_table_is_told_and_ignored(
    tmp_path: Path, name: str, content: bytes, message: str
):
    make(tmp_path, "a.mp4", "b.mp4", "sub/c.mp4")
    make(tmp_path / "sub", metadata__csv="file,text\nc.mp4,3\n")
    (tmp_path / name).write_bytes(content)
    listing = list_media(tmp_path)
    assert captions_of(listing) == {"a.mp4": None, "b.mp4": None, "sub/c.mp4": "3"}
    ((found, reason, detail, bad),) = problems_of(listing)
    assert (found, reason, bad) == (name, "table of captions cannot be used", False)
    assert message in detail
    with pytest.raises(InputError, match=message):
        list_media(tmp_path, tmp_path / name)  # A table that the user has given.


def test_the_exact_text_file_wins(tmp_path: Path):
    make(tmp_path, "a.mp4", "b.mp4", "b.png", "c.mp4", a__txt="no", a__mp4__txt="yes")
    make(tmp_path, b__txt="image", b__mp4__txt="clip", c__txt="c", c__mp4__txt="c\n")
    listing = list_media(tmp_path)
    captions = {"a.mp4": "yes", "b.mp4": "clip", "b.png": "image", "c.mp4": "c"}
    assert captions_of(listing) == captions
    detail = "used a.mp4.txt, not a.txt"
    assert problems_of(listing) == [("a.mp4", "several captions", detail, False)]


def test_a_shared_text_file_is_told(tmp_path: Path):
    make(tmp_path, "a.png", "a.mp4", "a.b.mp4", a__txt="x")
    listing = list_media(tmp_path)
    assert captions_of(listing) == {"a.b.mp4": None, "a.mp4": "x", "a.png": "x"}
    reason = "several files share one caption"
    assert problems_of(listing) == [("a.txt", reason, "a.mp4, a.png", False)]


def test_a_file_is_lost_by_a_caption_that_is_not_utf8(tmp_path: Path):
    make(tmp_path, "a.mp4", "b.mp4", a__txt=b"caf\xe9", b__txt=b"\xff", b__mp4__txt="b")
    make(tmp_path, metadata__csv="file,text\na.mp4,another\n")
    listing = list_media(tmp_path)
    assert captions_of(listing) == {"b.mp4": "b"}
    assert problems_of(listing) == [
        ("a.mp4", "caption is not UTF-8", "a.txt: byte 0xe9", True),
        ("b.mp4", "several captions", "used b.mp4.txt, not b.txt", False),
    ]


def test_tables_are_relative_to_their_folder(tmp_path: Path):
    make(tmp_path, "a.mp4", "sub/a.mp4", "sub/b.mp4", "sub/c.mp4")
    make(tmp_path, metadata__csv="file_name,caption\na.mp4,1\nsub/b.mp4,2\n")
    make(tmp_path / "sub", metadata__jsonl='{"video": "a.mp4", "prompt": "3"}\n')
    table = pa.table({"path": ["c.mp4"], "text": ["4"]})
    pq.write_table(table, tmp_path / "sub/Metadata.Parquet")
    listing = list_media(tmp_path)
    assert [*captions_of(listing).values()] == ["1", "3", "2", "4"]
    assert listing.problems == ()


def test_a_further_table_is_relative_to_the_media(tmp_path: Path):
    media = make(tmp_path / "media", "a.mp4", "b.mp4")
    make(media, metadata__csv="file,text\na.mp4,1\nb.mp4,2\n")
    make(tmp_path, more__jsonl='{"file": "a.mp4", "text": "3"}\n')
    more = tmp_path / "more.jsonl"
    listing = list_media(media, more)
    assert captions_of(listing) == {"a.mp4": "3", "b.mp4": "2"}
    detail = f"used {more}, line 1, not metadata.csv, line 2"
    assert problems_of(listing) == [("a.mp4", "several captions", detail, False)]


def test_a_table_is_not_read_twice(tmp_path: Path):
    make(tmp_path, "a.mp4", metadata__csv="file,text\na.mp4,1\nnone,2\n")
    (tmp_path / ".link.csv").symlink_to("metadata.csv")
    listing = list_media(tmp_path, tmp_path / ".link.csv")
    assert captions_of(listing) == {"a.mp4": "1"}
    assert len(listing.problems) == 1


def test_the_first_row_wins_and_a_text_file_over_all(tmp_path: Path):
    make(tmp_path, "a.mp4", "b.mp4", "c.mp4", "d.mp4", b__txt="text", d__txt="4")
    rows = "a.mp4,1\na.mp4,2\na.mp4,3\nb.mp4,4\nc.mp4,5\nc.mp4, 5\nd.mp4,4\n"
    make(tmp_path, metadata__csv=f"file,text\n{rows}")
    listing = list_media(tmp_path)
    assert [*captions_of(listing).values()] == ["1", "text", "5", "4"]
    first = "used metadata.csv, line 2, not metadata.csv, line 3 and 1 more"
    assert problems_of(listing) == [
        ("a.mp4", "several captions", first, False),
        ("b.mp4", "several captions", "used b.txt, not metadata.csv, line 5", False),
    ]


def test_captions_without_a_file_are_told(tmp_path: Path):
    make(tmp_path, "a.mp4", "sub/b.mp4", README__txt="hello")
    make(tmp_path / "sub", metadata__csv="file,text\nnone.mp4,1\nb.mp4,\n")
    listing = list_media(tmp_path)
    assert captions_of(listing) == {"a.mp4": None, "sub/b.mp4": None}
    reason = "caption with no file"
    assert problems_of(listing) == [
        ("README.txt", reason, "", False),
        ("sub/none.mp4", reason, "sub/metadata.csv, line 2", False),
    ]
    assert sum(problem.reason == "no caption" for problem in listing.problems) == 2


def test_a_row_that_cannot_be_read_is_told(tmp_path: Path):
    make(tmp_path, "sub/a.mp4")
    make(tmp_path / "sub", metadata__csv="file,text\na.mp4,1\na.mp4\n")
    detail = "line 3: expected 2 cells, got 1"
    assert problems_of(list_media(tmp_path)) == [
        ("sub/metadata.csv", "metadata row cannot be read", detail, False)
    ]


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("./sub//b.mp4", "sub/b.mp4"),
        ("sub/../a.mp4", "a.mp4"),
        (r"sub\b.mp4", "sub/b.mp4"),
        (r".\sub\b.mp4", "sub/b.mp4"),
        (r"x\y.mp4", r"x\y.mp4"),
        (f"{NFC}/{NFC}.mp4", f"{NFD}/{NFD}.mp4"),
        (f"{NFD}/{NFC}.mp4", f"{NFD}/{NFD}.mp4"),
        ("ROOT/sub/b.mp4", "sub/b.mp4"),
        ("LINK/sub/b.mp4", "sub/b.mp4"),
    ],
)
def test_rows_may_spell_paths_in_several_ways(tmp_path: Path, path: str, file: str):
    root = tmp_path / "media"
    names = ["a.mp4", "sub/b.mp4", r"x\y.mp4", "x/y.mp4", f"{NFD}/{NFD}.mp4"]
    make(root, *names)
    (tmp_path / "link").symlink_to(root)
    path = path.replace("ROOT", str(root)).replace("LINK", str(tmp_path / "link"))
    make(root, metadata__csv=f"file,text\n{path},it\n")
    listing = list_media(tmp_path / "link")
    assert captions_of(listing) == {**dict.fromkeys(names), file: "it"}
    assert problems_of(listing) == []


@pytest.mark.parametrize(
    "path",
    [
        *("../a.mp4", "x/../../media/a.mp4", "..", "/a.mp4", "OTHER/a.mp4"),
        *(r"..\a", r"x\..\..\a.mp4", r"x/..\../a.mp4", r"\a.mp4", "//a.mp4"),
    ],
)
def test_rows_may_not_lead_outside(tmp_path: Path, path: str):
    # A folder whose name merely begins like the other's.
    make(tmp_path, "media2/a.mp4", "a.mp4")
    path = path.replace("OTHER", str(tmp_path / "media2"))
    root = make(tmp_path / "media", "a.mp4", metadata__csv=f"file,text\n{path},it\n")
    listing = list_media(root)
    assert captions_of(listing) == {"a.mp4": None}
    reason = "path leads outside the folder"
    assert problems_of(listing) == [(path, reason, "metadata.csv, line 2", False)]


@pytest.mark.parametrize(
    "path", ["link/a.mp4", r"link\a.mp4", "LINK/a.mp4", "file.mp4", "link/../a.mp4"]
)
def test_rows_may_not_lead_outside_through_links(tmp_path: Path, path: str):
    make(tmp_path / "other", "a.mp4")
    root = make(tmp_path / "media", "b.mp4")
    (root / "link").symlink_to(tmp_path / "other")
    (root / "file.mp4").symlink_to(tmp_path / "other" / "a.mp4")
    make(root, metadata__csv=f"file,text\n{path.replace('LINK', f'{root}/link')},it\n")
    listing = list_media(root)
    assert captions_of(listing) == {"b.mp4": None}


def test_a_row_may_lead_up_within_the_folder(tmp_path: Path):
    make(tmp_path, "a.mp4")
    make(tmp_path / "sub", metadata__csv="file,text\n../a.mp4,it\n")
    assert captions_of(list_media(tmp_path)) == {"a.mp4": "it"}


def test_text_files_match_by_unicode_form(tmp_path: Path):
    make(tmp_path, f"{NFD}.mp4", f"{NFC}2.mp4")
    (tmp_path / f"{NFC}.txt").write_text("1")
    (tmp_path / f"{NFD}2.mp4.txt").write_text("2")
    listing = list_media(tmp_path)
    assert captions_of(listing) == {f"{NFD}.mp4": "1", f"{NFC}2.mp4": "2"}
    assert listing.problems == ()


def test_names_that_differ_only_in_unicode_form_are_told(tmp_path: Path):
    names = [f"{NFD}.mp4", f"{NFC}.mp4"]
    make(tmp_path, *names, metadata__csv=f"file,text\n{names[0]},d\n{names[1]},c\n")
    listing = list_media(tmp_path)
    assert captions_of(listing) == {names[0]: "d", names[1]: "c"}
    detail = r"'cafe\u0301.mp4', 'caf\xe9.mp4'"
    assert problems_of(listing) == [
        (names[0], "names differ only in Unicode form", detail, False)
    ]


def test_a_folder_of_no_use_is_an_error(tmp_path: Path):
    make(tmp_path, a__txt="x")
    for path, message in [
        (
            tmp_path / "no\nne",
            r"no\\nne: .*'No such file or directory'; check the path",
        ),
        (tmp_path / "a.txt", r"a\.txt: expected a folder .*'Not a directory'; check"),
        (tmp_path, r"expected images or clips in it, found none; check the path"),
    ]:
        with pytest.raises(InputError, match=message) as error:
            list_media(path)
        assert "\n" not in str(error.value)


def test_a_table_of_no_use_is_an_error(tmp_path: Path):
    make(tmp_path, "a.mp4")
    with pytest.raises(InputError, match=r"none\.csv: .*No such file"):
        list_media(tmp_path, tmp_path / "none.csv")
    (tmp_path / "metadata.csv").symlink_to("none")
    ((name, *_, detail, bad),) = problems_of(list_media(tmp_path))
    assert (name, bad) == ("metadata.csv", False)
    assert "No such file" in detail


# Few and such as could run into each other.
texts = st.text(alphabet='a",1[]\n', max_size=3)
contents = st.lists(st.tuples(texts, st.integers(0, 11), st.none() | texts), max_size=3)


def listing_of(content: list[tuple[str, int, str | None]]) -> Listing:
    files = [MediaFile(name=n, num_bytes=size, caption=c) for n, size, c in content]
    return Listing(files=tuple(files), problems=())


@given(contents, contents)
@example([("a", 11, "")], [("a1", 1, "")])
@example([("a", 1, None)], [("a", 1, "null")])
@example([("a", 1, "b")] * 2, [("a", 1, 'b"]\n["a", 1, "b')])
def test_the_digest_tells_listings_apart(one, other):
    assert (listing_of(one).digest() == listing_of(other).digest()) == (one == other)
    assert listing_of(one).digest() == listing_of([*one]).digest()
    assert len(listing_of(one).digest()) == 16


def test_the_digest_follows_the_folder(tmp_path: Path):
    digests = []
    for change in ({}, {"a__mp4": "...."}, {"a__txt": "x"}, {"a__txt": ""}, {"b": ""}):
        make(tmp_path, *([] if digests else ["a.mp4"]), **change)
        digests.append(list_media(tmp_path).digest())
    assert len({*digests}) == len(digests)
    assert list_media(tmp_path).digest() == digests[-1]
