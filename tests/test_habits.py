"""Checks format, lint, types, and a wheel in a clean environment."""

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "--quiet", "."],
        ["ruff", "format", "--check", "--quiet", "."],
        ["pyright", "--warnings"],
    ],
    ids=["lint", "format", "types"],
)
def test_python_is_clean(root: Path, command: list[str]):
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_cpp_is_formatted(root: Path):
    folders = (root / "ffi", root / "tests" / "cuda_emulation")
    sources = [
        path
        for folder in folders
        for path in folder.iterdir()
        if path.suffix in (".h", ".cc", ".cu")
    ]
    assert {path.suffix for path in sources} == {".h", ".cc", ".cu"}
    result = subprocess.run(
        [
            Path(sys.executable).with_name("clang-format"),
            "--dry-run",
            "--Werror",
            *sources,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_wheel_imports_in_a_clean_environment(root: Path, tmp_path: Path):
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), str(root)),
        ],
        check=True,
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python)),
            *("install", "--quiet", "--no-deps", str(wheel)),
        ],
        check=True,
    )
    # Dependencies come from this environment, as a path: its own .pth files, and with
    # them the editable install, are not read.
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    program = (
        "import jaxload, jaxload._ffi, jaxload.models, jaxload.train, jaxload.command;"
        "assert jaxload.__file__.startswith('" + str(tmp_path) + "'), jaxload.__file__;"
        "jaxload.train.main(['--help'])"
    )
    result = subprocess.run(
        [str(python), "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "train.num_steps (int) = " in result.stdout


def test_links_in_the_docs_lead_somewhere(root: Path):
    pages = [*root.glob("*.md"), *root.glob("docs/*.md")]
    for page in pages:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
        assert not re.search(r"^[A-Z_]{4,}$", text, re.M), f"{page.name}: placeholder"
