"""Checks format, lint, types, a wheel in a clean environment, CI and the changelog."""

import datetime
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import yaml


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
        if path.suffix in (".h", ".cc", ".cu", ".cuh")
    ]
    assert {path.suffix for path in sources} == {".h", ".cc", ".cu", ".cuh"}
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


def test_the_workflow_runs_what_has_to_pass(root: Path):
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert ".ci/run" in [step.get("run") for step in steps]
    script = (root / ".ci" / "run").read_text()
    for command in ("make test REQUIRE=cpu,cuda", "make soak"):
        assert re.search(rf"^{command}$", script, re.M)
    assert "export JAXLOAD_REQUIRE_BAZEL=1" in script
    subprocess.run(["bash", "-n", root / ".ci" / "run"], check=True)


def test_hooks_run_the_tools_of_the_lock_file(root: Path):
    config = yaml.safe_load((root / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} == {
        "ruff-check",
        "ruff-format",
        "clang-format",
    }
    locked = (root / "requirements.lock").read_text()
    for hook in hooks:
        tool = Path(hook["entry"].split()[0])
        assert tool.parent == Path(".venv/bin")
        assert re.search(rf"^{tool.name}==", locked, re.M)


def test_templates_are_there(root: Path):
    folder = root / ".github"
    assert "CHANGELOG" in (folder / "PULL_REQUEST_TEMPLATE.md").read_text()
    for name in ("bug", "feature"):
        text = (folder / "ISSUE_TEMPLATE" / f"{name}.md").read_text()
        _, header, body = text.split("---\n", 2)
        assert yaml.safe_load(header).keys() == {"name", "about"}
        assert body.strip()


def version_tuple(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_the_changelog_has_a_section_for_each_version(root: Path):
    text = (root / "CHANGELOG.md").read_text()
    first, *sections = re.findall(r"^## (.*)$", text, re.M)
    assert first == "Unreleased"
    versions, dates = zip(*(section.split(" - ") for section in sections), strict=True)
    numbers = [version_tuple(version) for version in versions]
    assert len(numbers) > 1
    assert numbers == sorted(set(numbers), reverse=True)
    days = [datetime.date.fromisoformat(date) for date in dates]
    assert days == sorted(days, reverse=True)
    kinds = set(re.findall(r"^### (.*)$", text, re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert numbers[0] >= version_tuple(project["version"])
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    assert citation["version"] == project["version"]
