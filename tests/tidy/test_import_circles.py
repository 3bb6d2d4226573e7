"""The modules of `chaos_protocols` import downwards: no circle, not even one that only the type checker sees."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.tidy.tree import ROOT

PACKAGE = ROOT / "protocols" / "chaos_protocols"
SCHEDULERS = {f"chaos_protocols.{name}" for name in ("adopting", "reconcile", "scheduler", "succession")}
"""Functions on one machine, in four files: the one circle that is left."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imports() -> dict[str, set[str]]:
    """For every module those that it names in an import statement, wherever that stands."""
    modules = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        wanted: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= {one for one in inner if one in modules} or {node.module}
        graph[name] = {one for one in wanted if one in modules and one != name}
    return graph


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything that `start` imports, and what that imports, and so on."""
    found, todo = set[str](), [start]
    while todo:
        for module in graph[todo.pop()] - found:
            found.add(module)
            todo.append(module)
    return found


def test_a_circle_is_seen() -> None:
    circle = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert [name for name in circle if name in reached(circle, name)] == ["a", "b", "c"]


def test_no_module_of_the_protocols_imports_one_that_imports_it() -> None:
    graph = imports()
    assert "chaos_protocols.state.machine" in graph["chaos_protocols.membership.participation"]
    assert {name for name in graph if name in reached(graph, name)} <= SCHEDULERS
