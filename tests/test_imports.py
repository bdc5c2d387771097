"""Tests the allowed imports between packages."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxload.cli import COMMANDS

ROOT = Path(__file__).parents[1]
LEAVES = {
    *("console", "errors", "fields", "files", "child_signals", "safetensors_header"),
    *("interrupts", "seed", "testing"),
}
READING = {"field_help", "field_paths", "field_types"}
"""Modules that read, change and explain the fields of a config."""

# Each package, and the packages that it may import besides itself and the leaves.
ALLOWED: dict[str, set[str]] = {
    "ops": {"_ffi"},
    "shapes": set(),
    "targets": set(),
    "balance": {"shapes"},
    "codecs": set(),
    "models": {"balance", "ops"},
    "data": {"balance", "shapes"},
    "media": {"codecs", "data", "shapes"},
    "sampling": {"shapes"},
    "parallel": {"balance"},
    "training": {"balance", "data", "models", "parallel", "sampling"},
    "config": {
        *("balance", "data", "media", "models", "parallel", "sampling", "shapes"),
        *("training", *READING),
    },
    "planning": {
        *("balance", "config", "data", "models", "parallel", "sampling", "shapes"),
        *("targets", "training"),
    },
    "reports": {
        *("balance", "codecs", "data", "media", "planning", "shapes", "training"),
    },
    "runs": {
        *("balance", "codecs", "config", "data", "media", "models", "parallel"),
        *("planning", "reports", "sampling", "shapes", "targets", "training"),
    },
    **{name: {*READING, "fields"} - {name} for name in sorted(READING)},
    "command": {"config", "field_help", "models", "targets"},
    "cli": {"command"},
    "__main__": {"cli"},
}
NO_JAX = {"balance", "shapes", "targets"}


def imported(path: Path) -> set[str]:
    """Returns the parts of jaxload that a file imports, as `jaxload.<part>`."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [module]
            if module == "jaxload":
                names = [f"jaxload.{alias.name}" for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("jaxload.")}
    return parts


def files(part: str) -> list[Path]:
    module = ROOT / "jaxload" / f"{part}.py"
    return (
        [module] if module.exists() else sorted(module.with_suffix("").glob("**/*.py"))
    )


def parts() -> set[str]:
    names = {p.stem for p in (ROOT / "jaxload").glob("*.py")} - {"__init__"}
    folders = {p.parent.name for p in (ROOT / "jaxload").glob("*/__init__.py")}
    return names | folders


def test_every_part_is_listed():
    assert parts() == LEAVES | set(ALLOWED) | set(COMMANDS)


@pytest.mark.parametrize("part", ALLOWED)
def test_a_package_imports_only_what_it_may(part: str):
    assert files(part)
    for path in files(part):
        foreign = imported(path) - {part} - LEAVES - ALLOWED[part]
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


@pytest.mark.parametrize("part", ALLOWED)
def test_every_edge_is_needed(part: str):
    used = set().union(*(imported(path) for path in files(part)))
    assert ALLOWED[part] - LEAVES <= used | READING


def test_leaves_import_nothing_but_leaves():
    for path in [path for leaf in LEAVES for path in files(leaf)]:
        assert imported(path) <= LEAVES, path


def test_there_is_no_cycle():
    graph = {
        part: set().union(*(imported(path) for path in files(part))) - {part}
        for part in parts()
    }
    graphlib.TopologicalSorter(graph).prepare()  # Raises CycleError.


def test_nothing_imports_a_command():
    for path in sorted((ROOT / "jaxload").glob("**/*.py")):
        assert not imported(path) & set(COMMANDS), path


def test_no_library_code_imports_a_benchmark_or_a_test():
    for path in sorted((ROOT / "jaxload").glob("**/*.py")):
        assert not {"benchmarks", "tests"} & top_level_imports(path), path


def test_no_test_imports_a_benchmark():
    """Tests run benchmarks as commands, and may read their workloads."""
    for path in sorted((ROOT / "tests").glob("**/*.py")):
        assert "benchmarks" not in top_level_imports(path), path


def top_level_imports(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").split(".")[0])
    return modules


MIN_LINES = 35
"""Modules with fewer lines must have several importers; others are to be merged."""


def sources() -> dict[str, Path]:
    """Returns the modules of the library, the benchmarks and the configs, by name."""
    folders = ("benchmarks", "configs", "jaxload", "models")
    modules = {}
    for path in (path for f in folders for path in (ROOT / f).glob("**/*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        # The folder models is linked into the package.
        modules[re.sub(r"^models\b", "jaxload.models", name)] = path
    return modules


def imported_modules(path: Path) -> set[str]:
    """Returns all names that a file imports, some of which are modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            names.add(node.module or "")
    return names


def test_a_small_module_has_several_importers():
    modules = sources()
    importers = {name: imported_modules(path) for name, path in modules.items()}
    found = set()
    for name, path in modules.items():
        users = [user for user, names in importers.items() if name in names]
        # A package's __init__ re-exports the names of the module.
        is_public = any(user.endswith("__init__") for user in users)
        if (
            len(users) == 1
            and not is_public
            and len(path.read_text().splitlines()) < MIN_LINES
        ):
            found.add(name)
    assert not found


def test_shapes_and_balance_touch_no_device_and_no_file():
    for path in (*files("shapes"), *files("balance")):
        assert not top_level_imports(path) & {"jax", "flax", "pathlib", "os", "io"}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print"), path


@pytest.mark.parametrize("part", sorted(NO_JAX))
def test_a_pure_package_imports_no_jax(part: str):
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in files(part)]
    program = (
        f"import importlib, sys; [importlib.import_module(m) for m in {modules!r}];"
        "assert 'jax' not in sys.modules and 'flax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_the_rule_sees_a_forbidden_import(tmp_path: Path):
    path = tmp_path / "x.py"
    path.write_text("from jaxload import models\nimport jaxload.data.record\n")
    assert imported(path) == {"models", "data"}


def test_models_under_another_name_is_refused():
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "models", ROOT / "models" / "__init__.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.raises(ImportError, match=r"Write `import jaxload\.models`"):
        spec.loader.exec_module(module)


def test_only_a_family_and_the_registry_name_its_classes():
    """Everything else asks the `Family` record of a config."""
    names = re.compile(r"\b(Wan|MMDiT)(Config|Transformer|Architecture)?\b")
    found = []
    for name, path in sources().items():
        parts = name.split(".")
        is_family = parts[:2] == ["jaxload", "models"] and parts[2] in ("wan", "mmdit")
        if is_family or parts[0] != "jaxload" or name in PUBLIC:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            label = getattr(node, "id", getattr(node, "attr", ""))
            if names.fullmatch(label):
                found.append(f"{name}:{getattr(node, 'lineno', 0)} {label}")
    assert not found


PUBLIC = {"jaxload.models.__init__"}
"""Modules that export the classes of all families."""
