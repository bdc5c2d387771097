"""The direction of imports: which room may know which."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("balance", "data", "models", "ops", "parallel", "targets", "training")
COMMANDS = {"train", "plan", "sample", "calibrate", "simulate", "prepare", "export"}
LEAVES = {"errors", "files", "progress", "testing"}

# Each room, and the rooms that it may import besides itself and the leaves.
ALLOWED = {
    "balance": set(),
    "ops": {"_ffi"},
    "parallel": set(),
    "targets": set(),
    "models": {"ops"},
    "data": {"balance"},
    "training": set(ROOMS) | {"config", "opening", "plan_report", "planning", "report"},
}


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


def files(room: str) -> list[Path]:
    return sorted((ROOT / "jaxload" / room).glob("**/*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str):
    assert files(room)
    for path in files(room):
        foreign = imported(path) - {room} - LEAVES - ALLOWED[room]
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


def test_nothing_imports_a_command():
    for path in sorted((ROOT / "jaxload").glob("**/*.py")):
        assert not imported(path) & COMMANDS, path


def test_balance_touches_no_device_and_no_file():
    for path in files("balance"):
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
    path.write_text("from jaxload import models\nimport jaxload.data.codec\n")
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
