"""Small faults in the decision code, one at a time: a comparison, a condition, a dropped statement.

The planted bugs (`bugs`) say what somebody thought of; these say what nobody did. `faults_in` lists every place where
one can be made. A fault has a name that only its own function changes, and a seed draws by names: the same ones as long
as the functions that they are in stay, whatever is changed around them.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

DECLARATIONS = ("effects.py", "events.py", "names.py", "errors.py", "settings.py", "__init__.py")
"""Nothing is decided there."""
DECLARING_FOLDERS = ("wire",)
TOLD_MAX = 70
"""Characters of the text that a fault is named by."""

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
    """`start`, `stop`: offsets in the file's bytes; `text` takes their place. `function`: qualified, in its module;
    `lines`: on which what is changed stands; `which`: of those in the function that read alike, counted from 0."""

    path: Path
    function: str
    lines: range
    what: str
    which: int = 0
    start: int
    stop: int
    text: str

    def name(self, package: Path) -> str:
        """Eight hexadecimal digits; the same as long as this place reads as it does."""
        told = f"{self.path.relative_to(package)} {self.function} {self.what} {self.which}"
        return hashlib.sha256(told.encode()).hexdigest()[:8]

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
    seen = Counter[tuple[str, str]]()
    found = []
    for fault in _Finder(path, data, starts).walk(ast.parse(data)):
        alike = (fault.function, fault.what)
        found.append(replace(fault, which=seen[alike]))
        seen[alike] += 1
    return found


def drawn(package: Path, seed: int, faults: int) -> list[SmallFault]:
    """As many places of the package as wanted; each is as likely as any other."""
    places = (fault for path in decision_modules(package) for fault in faults_in(path))
    lots = [(hashlib.sha256(f"{seed} {fault.name(package)}".encode()).digest(), fault) for fault in places]
    return [fault for _, fault in sorted(lots, key=lambda lot: lot[0])[:faults]]


class _Finder:
    def __init__(self, path: Path, data: bytes, starts: list[int]) -> None:
        self.path, self.data, self.starts = path, data, starts
        self.function = ""

    def walk(self, tree: ast.AST, owner: str = "") -> Iterator[SmallFault]:
        """Functions only: what stands outside of them is declared, not decided."""
        for node in ast.iter_child_nodes(tree):
            match node:
                case ast.FunctionDef():
                    self.function = f"{owner}{node.name}"
                    for statement in node.body:
                        yield from self._within(statement)
                case ast.ClassDef():
                    yield from self.walk(node, f"{owner}{node.name}.")
                case _:
                    yield from self.walk(node, owner)

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
        what = f"`{old}` is `{new}`: {self._told(node)}"
        return self._made(node, what, start, stop, gap.replace(old, new, 1))

    def _fault(self, node: ast.stmt | ast.expr, text: str, what: str) -> SmallFault:
        start, stop = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        return self._made(node, f"{what}: {self._told(node)}", start, stop, text)

    def _made(self, node: ast.stmt | ast.expr, what: str, start: int, stop: int, text: str) -> SmallFault:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return SmallFault(
            path=self.path, function=self.function, lines=lines, what=what, start=start, stop=stop, text=text
        )

    def _told(self, node: ast.stmt | ast.expr) -> str:
        """Its text on one line, shortened."""
        return " ".join(self._text(node).split())[:TOLD_MAX]

    def _text(self, node: ast.stmt | ast.expr) -> str:
        start, stop = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        return self.data[start:stop].decode()

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None and column is not None
        return self.starts[line - 1] + column


def _can_be_dropped(statement: ast.stmt) -> bool:
    """A call for its effect, or something that is remembered. A missing local name would be an error at once, and what
    the type checker shows to be never reached decides nothing."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return False
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            return True
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case _:
            return False
