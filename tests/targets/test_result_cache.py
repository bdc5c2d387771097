"""Tests the result cache: results are found by key and code, and never partial."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxload.errors import InputError
from jaxload.targets import ResultCache, default_directory, result_cache, source_digest

KEY: dict[str, Any] = {"target": "h100-80gb", "shape": [1, 2], "options": {"a": 1}}
RESULT = {"peak_bytes": 12, "calls": ["x"], "seconds": 0.1}


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "some" / "where")


def only_file(cache: ResultCache) -> Path:
    (path,) = cache._directory.iterdir()
    return path


# Keys.


def test_a_stored_result_is_returned(cache: ResultCache):
    assert cache.get(KEY) is None
    cache.put(KEY, RESULT)
    assert cache.get(KEY) == RESULT
    assert ResultCache(cache._directory).get(KEY) == RESULT
    assert json.loads(only_file(cache).read_text()) == {"key": KEY, "result": RESULT}


def test_the_order_of_a_key_does_not_matter(cache: ResultCache):
    cache.put(KEY, RESULT)
    assert cache.get(dict(reversed(KEY.items()))) == RESULT
    assert cache.get(KEY | {"shape": (1, 2)}) == RESULT


@pytest.mark.parametrize(
    "other",
    [
        {"target": "h200-141gb"},
        {"shape": [2, 1]},
        {"shape": [1.0, 2]},
        {"shape": [True, 2]},
        {"options": {"a": "1"}},
        {"more": None},
    ],
)
def test_other_key_has_no_result(cache: ResultCache, other: dict[str, Any]):
    cache.put(KEY, RESULT)
    assert cache.get(KEY | other) is None
    cache.put(KEY | other, {"peak_bytes": 13})
    assert cache.get(KEY) == RESULT
    assert cache.get(KEY | other) == {"peak_bytes": 13}


def test_last_result_of_a_key_counts(cache: ResultCache):
    cache.put(KEY, {"peak_bytes": 11})
    cache.put(KEY, RESULT)
    assert cache.get(KEY) == RESULT
    assert only_file(cache)


# Files.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b'{"key": {"target"',
        b"[]",
        b"{}",
        json.dumps({"key": KEY}).encode(),
        json.dumps({"key": KEY, "result": None}).encode(),
        json.dumps({"key": KEY, "result": [1]}).encode(),
        json.dumps({"key": KEY | {"target": "other"}, "result": RESULT}).encode(),
        json.dumps({"key": KEY | {"shape": [1.0, 2]}, "result": RESULT}).encode(),
        json.dumps({"result": RESULT}).encode(),
    ],
)
def test_damaged_file_is_a_miss_and_is_replaced(cache: ResultCache, content: bytes):
    cache.put(KEY, RESULT)
    only_file(cache).write_bytes(content)
    assert cache.get(KEY) is None
    cache.put(KEY, RESULT)
    assert cache.get(KEY) == RESULT


WRITER = """
import sys
from pathlib import Path
from jaxload.targets import ResultCache
cache, value = ResultCache(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for count in range(200):
    cache.put({"one": "key"}, {"values": [value] * 1000 * value})
"""


def test_two_processes_may_write_one_key_at_once(cache: ResultCache):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(cache._directory), str(value)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in (1, 2)
    ]
    possible = [{"values": [value] * 1000 * value} for value in (1, 2)]
    seen = []
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        seen.append(cache.get({"one": "key"}))
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    first = next(i for i, result in enumerate(seen) if result is not None)
    assert all(result in possible for result in seen[first:])
    assert all(result in seen for result in possible)
    assert only_file(cache)


def test_refuses_a_directory_that_cannot_be_created(tmp_path: Path):
    (tmp_path / "file").touch()
    message = (
        f"^{tmp_path}/file/cache: cannot be created \\(Not a directory\\); set "
        "XDG_CACHE_HOME to a directory that can be written$"
    )
    with pytest.raises(InputError, match=message):
        ResultCache(tmp_path / "file" / "cache")


def test_refuses_a_directory_that_cannot_be_written():
    # Not even root can write to /proc.
    with pytest.raises(InputError, match=r"^/proc/result\.json: cannot be written"):
        ResultCache(Path("/proc"))


@pytest.mark.parametrize(
    ("variable", "directory"),
    [
        ("/x/cache", "/x/cache/jaxload/targets"),
        ("", "/home/somebody/.cache/jaxload/targets"),
        ("not/absolute", "/home/somebody/.cache/jaxload/targets"),
        (None, "/home/somebody/.cache/jaxload/targets"),
    ],
)
def test_default_directory(
    variable: str | None, directory: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if variable is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert default_directory() == Path(directory)


def test_user_without_a_home(monkeypatch: pytest.MonkeyPatch):
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    message = "expected a home directory, got none; set XDG_CACHE_HOME to a directory"
    with pytest.raises(InputError, match=message):
        default_directory()


# Source.


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Builds a package with symbolic links to folders, as jaxload has them."""
    package = tmp_path / "package"
    files = ("package/a.py", "package/part/b.py", "models/c.py", "configs/d.py")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "extension.so").write_bytes(b"\xff")
    for name in ("models", "configs"):
        (package / name).symlink_to(f"../{name}")
    return package


def digest(package: Path, *, jax: str = "1") -> str:
    extension = package.parent / "extension.so"
    return result_cache._digest(
        package, extension if extension.exists() else None, {"jax": jax}
    )


@pytest.mark.parametrize(
    "name", ["package/a.py", "package/part/b.py", "models/c.py", "extension.so"]
)
def test_digest_changes_with_each_file(package: Path, name: str):
    before, path = digest(package), package.parent / name
    path.write_bytes(path.read_bytes() + b" ")
    changed = digest(package)
    path.unlink()
    assert len({before, changed, digest(package)}) == 3


def test_digest_changes_with_a_name_and_a_version(package: Path):
    before = digest(package)
    upgraded = digest(package, jax="2")
    (package / "a.py").rename(
        package / "aa.py"
    )  # The order of the files stays the same.
    assert len({before, upgraded, digest(package)}) == 3


def test_digest_ignores_files_that_are_not_code(package: Path):
    before = digest(package)
    (package / "notes.md").touch()
    (package / "part" / "__pycache__").mkdir()
    (package / "part" / "__pycache__" / "b.pyc").touch()
    (package / ".#a.py").symlink_to("nothing")
    (package.parent / "configs" / "d.py").write_text("edited")
    assert digest(package) == before


def test_digest_is_of_this_code_and_is_computed_once():
    paths = list(result_cache._python_files(result_cache._PACKAGE))
    names = {str(path.relative_to(result_cache._PACKAGE)) for path in paths}
    assert {"train.py", "targets/result_cache.py", "models/presets.py"} <= names
    assert len(source_digest()) == 64
    hits = source_digest.cache_info().hits
    assert source_digest() == source_digest()
    assert source_digest.cache_info().hits == hits + 2


def test_changed_source_has_no_result(cache: ResultCache, package: Path):
    key = KEY | {"source": digest(package)}
    cache.put(key, RESULT)
    (package / "part" / "b.py").write_text("b = 2")
    assert cache.get(KEY | {"source": digest(package)}) is None
    assert cache.get(key) == RESULT
