"""Small faults in the decision code, one at a time: a comparison, a condition, a dropped statement.

The planted bugs (`bugs`) say what somebody thought of; these say what nobody did. `faults_in` lists every place where
one can be made, in the order of the files, so a seed draws the same ones from the same sources.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DECLARATIONS = ("effects.py", "events.py", "names.py", "errors.py", "settings.py", "__init__.py")
"""Nothing is decided there."""
DECLARING_FOLDERS = ("wire",)

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFault:
    """`start`, `stop`: offsets in the file's bytes; `text` takes their place."""

    path: Path
    line: int
    what: str
    start: int
    stop: int
    text: str

    def source(self) -> bytes:
        """The file with the fault in it."""
        data = self.path.read_bytes()
        return data[: self.start] + self.text.encode() + data[self.stop :]


def decision_modules(package: Path) -> list[Path]:
    """The modules of `package` that decide something, in a fixed order."""
    chosen = (path for path in package.rglob("*.py") if path.name not in DECLARATIONS)
    return sorted(path for path in chosen if path.relative_to(package).parts[0] not in DECLARING_FOLDERS)


def faults_in(path: Path) -> list[SmallFault]:
    """Every small fault that can be made in this module."""
    data = path.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return list(_Finder(path, data, starts).walk(ast.parse(data)))


class _Finder:
    def __init__(self, path: Path, data: bytes, starts: list[int]) -> None:
        self.path, self.data, self.starts = path, data, starts

    def walk(self, tree: ast.Module) -> Iterator[SmallFault]:
        """Functions only: what stands outside of them is declared, not decided."""
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        inner = {id(node) for function in functions for node in ast.walk(function) if node is not function}
        for function in functions:
            if id(function) not in inner:
                for statement in function.body:
                    yield from self._within(statement)

    def _within(self, statement: ast.stmt) -> Iterator[SmallFault]:
        if isinstance(statement, ast.Assert):  # it decides nothing
            return
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):  # a docstring
            return
        if _can_be_dropped(statement):
            yield self._fault(statement, "pass", "dropped")
        if isinstance(statement, ast.If | ast.While):
            yield self._fault(statement.test, f"(not ({self._text(statement.test)}))", "condition turned round")
        for child in ast.iter_child_nodes(statement):
            yield from self._node(child)

    def _node(self, node: ast.AST) -> Iterator[SmallFault]:
        match node:
            case ast.stmt():
                yield from self._within(node)
                return
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                old, new = COMPARISONS[type(op)]
                yield self._between(left, right, node, old, new)
            case ast.BoolOp(op=op, values=[first, second, *_]):
                old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                if len(node.values) == 2:
                    yield self._between(first, second, node, old, new)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._fault(node, self._text(operand), "`not` dropped")
            case ast.IfExp(test=test):
                yield self._fault(test, f"(not ({self._text(test)}))", "condition turned round")
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            yield from self._node(child)

    def _between(self, left: ast.expr, right: ast.expr, node: ast.expr, old: str, new: str) -> SmallFault:
        """The operator between two operands: with whatever brackets and line ends stand around it."""
        start, stop = self._at(left.end_lineno, left.end_col_offset), self._at(right.lineno, right.col_offset)
        gap = self.data[start:stop].decode()
        text = gap.replace(old, new, 1)
        return SmallFault(
            path=self.path, line=node.lineno, what=f"`{old}` is `{new}`", start=start, stop=stop, text=text
        )

    def _fault(self, node: ast.stmt | ast.expr, text: str, what: str) -> SmallFault:
        start, stop = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        told = " ".join(self.data[start:stop].decode().split())
        return SmallFault(
            path=self.path, line=node.lineno, what=f"{what}: {told[:60]}", start=start, stop=stop, text=text
        )

    def _text(self, node: ast.expr) -> str:
        start, stop = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        return self.data[start:stop].decode()

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None and column is not None
        return self.starts[line - 1] + column


def _can_be_dropped(statement: ast.stmt) -> bool:
    """A call for its effect, or something that is remembered. A missing local name would be an error at once."""
    match statement:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            return True
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case _:
            return False
