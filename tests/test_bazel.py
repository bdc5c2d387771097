"""Tests that BUILD and MODULE.bazel match the project, and that Bazel builds it.

The first tests need no Bazel: Starlark is a subset of Python, so they run both files as
Python, with functions that record their arguments. The last tests need a Bazel with
built-in rules, such as Debian's bazel-bootstrap. They replace the repositories that
BUILD loads by stand-ins made of built-in rules and of installed packages.
"""

import ast
import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax.ffi
import nanobind
import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# These check the checkout; Bazel does not run them.
NOT_IN_BAZEL = {
    "tests/models/test_h100_models.py",
    "tests/ops/test_attention_h100.py",
    "tests/ops/test_cpu_kernels.py",
    "tests/ops/test_h100.py",
    "tests/test_bazel.py",
    "tests/test_habits.py",
}


class Calls(collections.defaultdict[str, list[dict[str, Any]]]):
    """Recorded calls of a Starlark file: their arguments, by function."""

    def __init__(self):
        super().__init__(list)

    def note(self, function: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self[function].append({"args": args, **kwargs})

    def run(self, path: Path, names: dict[str, Any]):
        tree = ast.parse(path.read_text(), str(path))
        for node in tree.body:
            assert isinstance(node, ast.Assign | ast.Expr), ast.unparse(node)
        assert not any(isinstance(node, ast.JoinedStr) for node in ast.walk(tree))
        exec(compile(tree, str(path), "exec"), names)


def build_file(root: Path = ROOT) -> Calls:
    """Runs BUILD and records its calls, with all branches of each `select`."""
    calls = Calls()

    def find(include: list[str], exclude=()) -> list[str]:
        paths = {
            path
            for pattern in include
            for path in glob.glob(pattern, root_dir=root, recursive=True)
        }
        assert paths, f"glob({include}) finds nothing"
        assert paths.issuperset(exclude), f"glob({include}) finds not all of {exclude}"
        return sorted(paths.difference(exclude))

    def load(label: str, *functions: str):
        calls.note("load")(label)
        names.update((function, calls.note(function)) for function in functions)

    names: dict[str, Any] = {
        "config_setting": calls.note("config_setting"),
        "glob": find,
        "load": load,
        "select": lambda branches: [x for branch in branches.values() for x in branch],
    }
    calls.run(root / "BUILD", names)
    return calls


def module_file() -> Calls:
    """Runs MODULE.bazel and records its calls, with extension tags as functions."""
    calls = Calls()

    class Extension:
        def __init__(self, label: str, name: str):
            calls.note(name)(label)

        def __getattr__(self, tag: str) -> Callable[..., None]:
            return calls.note(tag)

    names = {name: calls.note(name) for name in ("bazel_dep", "module", "use_repo")}
    calls.run(ROOT / "MODULE.bazel", {"use_extension": Extension, **names})
    return calls


def targets(build: Calls) -> list[dict[str, Any]]:
    return [call for calls in build.values() for call in calls if "name" in call]


def labels(build: Calls) -> set[str]:
    """Returns all labels that BUILD refers to."""
    found = {call["args"][0] for call in build["load"]}
    for target in targets(build):
        for attribute in ("srcs", "hdrs", "data", "deps"):
            found.update(target.get(attribute, ()))
    return found


def package(requirement: str) -> str:
    """Normalizes `@pypi//name`, `name>=1` or `name==1 ; ...` to the hub's name."""
    name = re.split(r"[^\w.-]", requirement.removeprefix("@pypi//"))[0]
    return name.lower().replace("-", "_")


def packages(build: Calls) -> set[str]:
    return {package(label) for label in labels(build) if label.startswith("@pypi//")}


def test_build_refers_to_what_exists():
    build, module = build_file(), module_file()
    names = [target["name"] for target in targets(build)]
    assert len(names) == len(set(names))
    repositories = {dep["name"] for dep in module["bazel_dep"]}
    repositories.update(*(call["args"][1:] for call in module["use_repo"]))
    for label in labels(build):
        if label.startswith("@"):
            assert label[1:].split("//")[0] in repositories, label
        else:
            name = label.removeprefix(":")
            assert name in names or (ROOT / name).is_file(), label


def test_module_refers_to_what_exists():
    build, module = build_file(), module_file()
    (parse,) = module["parse"]
    (modification,) = module["whl_mods"]
    assert module["module"][0]["version"] == PROJECT["version"]

    lock = ROOT / parse["requirements_lock"].removeprefix("//:")
    assert packages(build) <= {package(line) for line in lock.read_text().splitlines()}

    (alias,) = parse["extra_hub_aliases"][modification["whl_name"]]
    assert f"@pypi//{modification['whl_name']}:{alias}" in labels(build)
    include = Path(jax.ffi.include_dir()).relative_to(sysconfig.get_path("purelib"))
    content = modification["additive_build_content"]
    assert f'name = "{alias}"' in content
    assert f'includes = ["site-packages/{include}"]' in content


def test_build_has_the_dependencies_of_pyproject():
    (library,) = build_file()["py_library"]
    expected = {package(requirement) for requirement in PROJECT["dependencies"]}
    assert {package(label) for label in library["deps"]} == expected


def test_build_has_every_source_once():
    build = build_file()
    (library,) = build["py_library"]
    folders = ("configs", "jaxload", "models")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = [(ROOT / path).resolve() for path in library["srcs"]]
    assert sorted(found) == sorted(modules)

    rules = ("cc_binary", "cc_library", "cc_test", "cuda_library")
    compiled = {path for x in rules for target in build[x] for path in target["srcs"]}
    cmake = (ROOT / "ffi" / "CMakeLists.txt").read_text()
    named = {f"ffi/{name}" for name in re.findall(r"[\w.]+\.(?:cc|cu)\b", cmake)}
    sources = {f"ffi/{path.name}" for path in ROOT.glob("ffi/*.c[cu]")}
    assert compiled == named == sources

    tests = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")}
    assert tests - {f"{test['name']}.py" for test in build["py_test"]} == NOT_IN_BAZEL


def test_build_has_the_instruction_sets_of_cmake():
    cmake = (ROOT / "ffi" / "CMakeLists.txt").read_text()
    named = dict(re.findall(r"add_rows\((\w+)(.*)\)", cmake))
    rows = [
        target for target in build_file()["cc_library"] if "local_defines" in target
    ]
    found = {
        target["local_defines"][0].removeprefix("JAXLOAD_ISA="): target["copts"]
        for target in rows
    }
    assert found.keys() == named.keys()
    for isa, flags in named.items():
        assert [flag for flag in found[isa] if flag.startswith("-m")] == flags.split()


def test_build_links_the_cuda_kernels():
    build = build_file()
    (library,) = build["cuda_library"]
    for attribute, suffix in {"srcs": "cu", "hdrs": "cuh"}.items():
        paths = {f"ffi/{path.name}" for path in ROOT.glob(f"ffi/*.{suffix}")}
        assert set(library[attribute]) == paths
    assert f":{library['name']}" in labels(build)


# With Bazel.

PY_TEST = """\
def py_test(name, srcs, main_module, **kwargs):
    main = name + ".main.py"
    run = "import runpy; runpy.run_module('%s', None, '__main__', True)" % main_module
    native.genrule(name = name + ".main", outs = [main], cmd = 'echo "%s" > $@' % run)
    native.py_test(name = name, srcs = srcs + [main], main = main, **kwargs)
"""

# Targets that a machine without CUDA builds do not depend on it.
CUDA_LIBRARY = """\
def cuda_library(name, srcs, **kwargs):
    native.filegroup(name = name, srcs = srcs)
"""

NANOBIND = """\
cc_library(
    name = "nanobind",
    srcs = ["src/nb_combined.cpp"],
    hdrs = glob(["include/**/*.h", "python/**/*.h"]),
    copts = ["-fno-strict-aliasing"],
    includes = ["include", "python", "robin_map"],
    textual_hdrs = glob(["robin_map/**/*.h", "src/*"]),
    visibility = ["//visibility:public"],
)
"""

XLA_FFI = """\
cc_library(
    name = "xla_ffi",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""


def write_stand_ins(root: Path):
    """Writes the repositories that BUILD and this Bazel's own files load."""

    def write(path: str, text: str):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        (root / path).with_name("BUILD").touch()

    def export(path: str, *rules: str):
        write(path, "".join(f"{rule} = native.{rule}\n" for rule in rules))

    def declare(path: str, rule: str, *names: str):
        attributes = 'visibility = ["//visibility:public"]'
        write(path, "".join(f'{rule}(name = "{x}", {attributes})\n' for x in names))

    cc_rules = ("cc_binary", "cc_import", "cc_library", "cc_test")
    cc_toolchains = ("cc_toolchain", "cc_toolchain_suite")
    java_rules = ("java_import", "java_runtime", "java_toolchain")
    coverage = ("coverage_output_generator", "coverage_report_generator")
    export("rules_cc/cc/cc_binary.bzl", "cc_binary")
    export("rules_cc/cc/cc_library.bzl", "cc_library")
    export("rules_cc/cc/cc_test.bzl", "cc_test")
    export("rules_cc/cc/defs.bzl", *cc_rules, *cc_toolchains)
    export("rules_java/java/defs.bzl", *java_rules)
    export("rules_python/python/py_library.bzl", "py_library")
    write("rules_python/python/py_test.bzl", PY_TEST)
    write("rules_cuda/cuda/defs.bzl", CUDA_LIBRARY)
    declare("remote_coverage_tools/BUILD", "filegroup", *coverage)

    source = Path(nanobind.source_dir())
    write("nanobind/BUILD", NANOBIND)
    (root / "nanobind/include").symlink_to(nanobind.include_dir())
    (root / "nanobind/python").symlink_to(sysconfig.get_path("include"))
    (root / "nanobind/robin_map").symlink_to(source.parent / "ext/robin_map/include")
    (root / "nanobind/src").symlink_to(source)

    for name in packages(build_file()):
        declare(f"pypi/{name}/BUILD", "py_library", name)
    with (root / "pypi/jaxlib/BUILD").open("a") as file:
        file.write(XLA_FFI)
    (root / "pypi/jaxlib/include").symlink_to(jax.ffi.include_dir())

    for repository in root.iterdir():
        (repository / "WORKSPACE").touch()


def find_bazel() -> str:
    """Returns a Bazel with built-in rules; without one, skips or, in CI, fails."""
    # Debian's first, because another Bazel may come before it on the path.
    program = shutil.which("bazel", path="/usr/bin") or shutil.which("bazel")
    if program is None:
        no_bazel("bazel is not installed; install Debian's bazel-bootstrap")
    version = subprocess.run([program, "--version"], capture_output=True, text=True)
    if re.search(r"bazel ([7-9]|\d\d)\.", version.stdout):
        no_bazel("this Bazel reads MODULE.bazel: run `bazel test //...` instead")
    return program


def no_bazel(reason: str) -> NoReturn:
    if os.environ.get("JAXLOAD_REQUIRE_BAZEL"):
        pytest.fail(f"{reason}, and JAXLOAD_REQUIRE_BAZEL is set")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def bazel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a Bazel command in a copy of the project, and returns its output."""
    program = find_bazel()
    root = tmp_path_factory.mktemp("bazel")
    project, repositories, path = root / "project", root / "repositories", root / "bin"
    for name in ("configs", "ffi", "jaxload", "models", "tests"):
        shutil.copytree(ROOT / name, project / name, symlinks=True)
    for name in (".bazelignore", "BUILD", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    # Replaces MODULE.bazel and its options.
    (project / "WORKSPACE").touch()
    settings = (ROOT / ".bazelrc").read_text()
    (project / ".bazelrc").write_text(re.sub(r"(?m)^common .*", "", settings))
    write_stand_ins(repositories)
    # Not the Python of .venv, which would import the package from the checkout.
    path.mkdir()
    (path / "python3").symlink_to(Path(sys.executable).resolve())
    env = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}

    start = [program, "--batch", f"--output_user_root={root / 'output'}"]
    stand_ins = [f"--override_repository={x.name}={x}" for x in repositories.iterdir()]

    def run(command: str, *args: str) -> str:
        result = subprocess.run(
            [*start, command, *stand_ins, *args],
            cwd=project,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


@pytest.mark.slow
def test_bazel_finds_the_same_targets(bazel: Callable[..., str]):
    build = build_file()
    (library,) = build["py_library"]
    tests = bazel("query", "tests(//...)").split()
    expected = [*build["py_test"], *build["cc_test"]]
    assert sorted(tests) == sorted(f"//:{test['name']}" for test in expected)
    sources = bazel("query", "labels(srcs, //:jaxload)").split()
    assert sorted(sources) == sorted(f"//:{path}" for path in library["srcs"])


@pytest.mark.slow
def test_bazel_builds_the_extension_and_runs_its_tests(bazel: Callable[..., str]):
    # The tests require the kernels, and find them among Bazel's outputs.
    python_path = f"--test_env=PYTHONPATH={sysconfig.get_path('purelib')}"
    names = ["//:tests/ops/test_ffi", "//:layer_norm_modulate_cpu_test"]
    printed = bazel("test", "--jobs=2", python_path, *names)
    for name in names:
        assert re.search(rf"{name} +PASSED", printed)
