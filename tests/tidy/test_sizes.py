"""The house rules on size: a module has at most 400 lines, a function 70, a line 120 (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LINE_CHARACTERS_MAX = 120
FOLDERS = ("chaosd", "sdk", "protocols", "tests", "benchmarks", "examples", "docker")


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_are_sources_to_check() -> None:
    assert len(sources()) > 20


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_function_and_line_sizes_are_within_bounds(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    too_long = [f"line {number}" for number, line in enumerate(lines, 1) if len(line) > LINE_CHARACTERS_MAX]
    for function in functions(ast.parse(text)):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            too_long.append(f"function {function.name} has {length} lines")
    if len(lines) > MODULE_LINES_MAX:
        too_long.append(f"module has {len(lines)} lines")
    assert not too_long, f"{path.relative_to(ROOT)}: {'; '.join(too_long)}"
