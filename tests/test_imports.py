"""The direction of imports: which package may import which."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = {"train", "plan", "sample", "calibrate", "simulate", "prepare", "export"}
LEAVES = {"errors", "files", "console", "testing"}

# Each package, and the packages that it may import besides itself and the leaves.
ALLOWED = {
    "ops": {"_ffi"},
    "parallel": set(),
    "shapes": set(),
    "targets": set(),
    "balance": {"shapes"},
    "codecs": {"shapes"},
    "models": {"ops"},
    "data": {"balance", "shapes"},
    "media": {"codecs", "data", "shapes"},
    "sampling": {"shapes", "training"},
    "training": {
        *("balance", "config", "models", "parallel", "planning", "sampling", "shapes"),
    },
    "planning": {
        *("balance", "config", "data", "models", "parallel", "shapes", "training"),
    },
    "reports": {
        *("balance", "codecs", "data", "media", "planning", "shapes", "training"),
    },
    "runs": {
        *("balance", "codecs", "config", "data", "media", "models", "parallel"),
        *("planning", "reports", "training"),
    },
}
PACKAGES = tuple(ALLOWED)


def imported(path: Path) -> set[str]:
    """The parts of jaxload that a file imports, as `jaxload.<part>`."""
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


def files(package: str) -> list[Path]:
    return sorted((ROOT / "jaxload" / package).glob("**/*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_it_may(package: str):
    assert files(package)
    for path in files(package):
        foreign = imported(path) - {package} - LEAVES - ALLOWED[package]
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


def test_nothing_imports_a_command():
    for path in sorted((ROOT / "jaxload").glob("**/*.py")):
        assert not imported(path) & COMMANDS, path


def test_shapes_and_balance_touch_no_device_and_no_file():
    for path in (*files("shapes"), *files("balance")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                module = getattr(node, "module", None)
                modules = {name.split(".")[0] for name in [*names, module or ""]}
                assert not modules & {"jax", "flax", "pathlib", "os", "io"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print"), path


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
