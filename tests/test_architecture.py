"""The import rule, executable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "garrison"
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "models": {"errors"},
    "domain": {"errors", "models"},
    "catalog": {"errors", "models"},
    "settings": {"errors", "models", "private_files"},
    "sealing": {"errors", "private_files"},
    "failures": {"errors"},
    "private_files": set(),
    "service": {"errors", "models", "failures", "settings"},
    "providers": {"errors", "models", "catalog"},
    "load": {"errors", "models", "domain"},
    "activities": {"errors", "models", "domain", "load", "providers", "sealing"},
    "workflows": {"errors", "models", "domain", "failures", "activities"},
    "client": {
        "domain",
        "errors",
        "models",
        "failures",
        "private_files",
        "settings",
        "service",
        "sealing",
        "workflows",
    },
    "router": {"errors", "models", "domain", "settings", "client"},
    "cli": {"errors", "models", "failures", "private_files", "settings", "service", "client"},
}
LAYERS["workers"] = set(LAYERS) - {"cli", "client", "router"}
COMPOSITION = {
    "cli/run.py": {"workers", "router"},  # `up`, `worker`
    "cli/router.py": {"workers", "router"},
    "cli/simulated.py": {"providers"},  # rehearsals act on the simulated cloud itself
}
ADAPTERS = {"cli/simulated.py": "providers.simulated"}
PURE = ("errors", "models", "domain")
IMPURE_MODULES = {"asyncio", "httpx", "os", "random", "temporalio", "time", "uuid"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def _layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}: imports are absolute"
            module = node.module or ""
            # `from garrison.models import offer` imports a module too.
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_imports_point_down(path: Path) -> None:
    layer, name = _layer(path), _name(path)
    if layer == "__init__":
        return
    assert layer in LAYERS, f"{name} is in no layer of the design"
    allowed = LAYERS[layer] | COMPOSITION.get(name, set())

    targets = [m.split(".")[1] for m in _imports(path) if m.startswith("garrison.")]

    assert set(targets) - {layer} <= allowed, f"{layer} must not import these"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_only_workers_choose_an_adapter(path: Path) -> None:
    adapters = [
        module.removeprefix("garrison.")
        for module in _imports(path)
        if module.startswith("garrison.providers.")
        and not module.startswith("garrison.providers.base.")
    ]

    if _layer(path) in {"providers", "workers"}:
        return
    door = ADAPTERS.get(_name(path))
    assert all(door is not None and adapter.startswith(door) for adapter in adapters)


@pytest.mark.parametrize("path", [p for p in SOURCES if _layer(p) in PURE], ids=_name)
def test_pure_layers_know_no_clock_and_no_world(path: Path) -> None:
    roots = {module.split(".")[0] for module in _imports(path)}

    assert not roots & IMPURE_MODULES


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name == "__init__.py"], ids=_name)
def test_package_files_hold_one_docstring(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body

    # The workflow sandbox imports parent packages anew: a re-export would drag everything in.
    assert [type(node) for node in body] == [ast.Expr]
