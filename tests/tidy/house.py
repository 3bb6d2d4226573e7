"""Figures of the house: what can be read off the source without running it. `python -m tests.tidy.house` prints them.

    import circles     modules that import each other round about; with and without imports for type checking alone
    folders            modules in each, the widest first
    classes            attributes of each; names that two classes bear
    functions          branches of each, lines above the limit
    outside writes     places in `chaos_protocols` that assign to a field of something that another module defines,
                       and those that put something into such a field, or take it out (`core.votes.add(...)`)

A branch is an `if`, a conditional expression, a loop, an `except`, an operand after the first of `and` or `or`, a
filter of a comprehension, a `match`: its cases are one table, not one branch each. An outside write is a guess from
names: the target is not `self.field`, and no class of the same module has that field.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from tests.tidy.tree import ROOT, shown

ROOTS = ("protocols", "chaosd", "sdk")
"""Folders whose packages are the product."""

PURE = "chaos_protocols"
BRANCHES_MAX = 15
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 400
SHOWN = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module of the product."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Something in a module, and how big it is."""

    where: str
    name: str
    size: int


@cache
def modules() -> dict[str, Module]:
    """All modules of the product, by dotted name."""
    found = {}
    for root in ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            found[name] = Module(name=name, path=path, tree=ast.parse(text), lines=len(text.splitlines()))
    return found


# ---- imports


def imported(module: Module, *, type_only: bool) -> set[str]:
    """Modules of the product that this one imports, at any depth of its code; `type_only`: those for types as well."""
    known = modules()
    names: set[str] = set()
    skipped = set() if type_only else set(map(id, _under_type_checking(module.tree)))
    for node in ast.walk(module.tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(module, node)
            names.update(f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names)
    return {name for name in names if name in known and name != module.name}


def _base_of(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*above, *([node.module] if node.module else [])])


def _under_type_checking(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from chain.from_iterable(ast.walk(one) for one in node.body)


def circles(*, type_only: bool) -> list[tuple[str, ...]]:
    """Groups of modules in which each imports each, directly or round about."""
    return strong_components({name: sorted(imported(one, type_only=type_only)) for name, one in modules().items()})


def strong_components(arrows: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """Those of more than one node (Tarjan, Depth-first search and linear graph algorithms, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in arrows[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(tuple(sorted(group)))

    for name in arrows:
        if name not in order:
            visit(name)
    return sorted(found)


# ---- folders, classes, functions


def modules_in_folders() -> list[tuple[str, int]]:
    """Folders with the number of modules that lie in them, the widest first; the package's own file does not count."""
    counted = Counter(shown(module.path.parent) for module in modules().values() if not module.is_package)
    return sorted(counted.items(), key=lambda one: (-one[1], one[0]))


def classes() -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def attributes(node: ast.ClassDef) -> set[str]:
    """Fields that a class declares, or that one of its methods assigns to `self`."""
    names = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    for target in targets(node):
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            names.add(target.attr)
    return names


def targets(tree: ast.AST) -> Iterator[ast.expr]:
    """Everything that is assigned to, tuples taken apart."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=several):
                yield from chain.from_iterable(map(_apart, several))
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target) | ast.NamedExpr(target=target):
                yield target
            case ast.For(target=target) | ast.AsyncFor(target=target):
                yield from _apart(target)
            case ast.Delete(targets=several):
                yield from chain.from_iterable(map(_apart, several))


def _apart(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        yield from chain.from_iterable(map(_apart, target.elts))
    else:
        yield target


def class_sizes() -> list[Named]:
    """Classes by their number of attributes, the largest first."""
    found = [Named(where=module.name, name=node.name, size=len(attributes(node))) for module, node in classes()]
    return sorted(found, key=lambda one: (-one.size, one.where))


def double_class_names() -> dict[str, tuple[str, ...]]:
    """Public names that several classes bear, with their modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, node in classes():
        if not node.name.startswith("_"):
            places[node.name].append(module.name)
    return {name: tuple(sorted(where)) for name, where in sorted(places.items()) if len(where) > 1}


def functions() -> Iterator[tuple[Module, str, Function]]:
    """Every function with the name of the class that it is in, if it is in one."""

    def inside(module: Module, node: ast.AST, prefix: str) -> Iterator[tuple[Module, str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from inside(module, child, f"{child.name}.")
            elif isinstance(child, Function):
                yield module, f"{prefix}{child.name}", child
                yield from inside(module, child, prefix)
            else:
                yield from inside(module, child, prefix)

    for module in modules().values():
        yield from inside(module, module.tree, "")


def branches(function: Function) -> int:
    """See the module. A function inside counts for the one around it too."""
    count = 0
    for node in ast.walk(function):
        match node:
            case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler() | ast.Match():
                count += 1
            case ast.BoolOp(values=values):
                count += len(values) - 1
            case ast.comprehension(ifs=ifs):
                count += len(ifs)
    return count


def branchy_functions() -> list[Named]:
    """All functions by their number of branches, the most first."""
    found = [Named(where=module.name, name=name, size=branches(node)) for module, name, node in functions()]
    return sorted(found, key=lambda one: (-one.size, one.where, one.name))


def long_functions() -> list[Named]:
    found = [
        Named(where=module.name, name=name, size=(node.end_lineno or node.lineno) - node.lineno + 1)
        for module, name, node in functions()
    ]
    return sorted((one for one in found if one.size > FUNCTION_LINES_MAX), key=lambda one: -one.size)


def long_modules() -> list[Named]:
    found = [Named(where=name, name="", size=module.lines) for name, module in modules().items()]
    return sorted((one for one in found if one.size > MODULE_LINES_MAX), key=lambda one: -one.size)


# ---- who writes whose fields


def outside_writes() -> list[tuple[str, int, str]]:
    """Module, line and target of every write that seems to go to another module's object."""
    return _in_pure(writes_of)


def outside_changes() -> list[tuple[str, int, str]]:
    """Module, line and call of every change to a container that seems to be a field of another module's object."""
    return _in_pure(changes_of)


def _in_pure(found_in: Callable[[ast.Module], Iterator[tuple[int, str]]]) -> list[tuple[str, int, str]]:
    pure = [module for module in modules().values() if module.name.split(".")[0] == PURE]
    return sorted((module.name, line, what) for module in pure for line, what in found_in(module.tree))


def writes_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and target of what a module writes to fields that none of its classes has."""
    own = _fields_of(tree)
    for target in targets(tree):
        at = target.value if isinstance(target, ast.Subscript) else target
        if isinstance(at, ast.Attribute) and not _is_own(at, own):
            yield at.lineno, ast.unparse(target)


CHANGERS = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove")
) | {"setdefault", "update"}
"""What changes a set, a list, a queue or a dictionary."""


def changes_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and call of each change that a module makes to a container in a field that none of its classes has."""
    own = _fields_of(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute() as held, attr=name) as called):
                if name in CHANGERS and not _is_own(held, own):
                    yield node.lineno, ast.unparse(called)


def _fields_of(tree: ast.Module) -> set[str]:
    return set().union(*(attributes(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)))


def _is_own(target: ast.Attribute, own: set[str]) -> bool:
    direct = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
    return direct or target.attr in own


# ---- printing


def report() -> Iterator[str]:
    """The figures, line by line."""
    for title, type_only in (("import circles", False), ("import circles, with imports for types", True)):
        groups = circles(type_only=type_only)
        yield f"{title}: {len(groups)}"
        yield from (f"    {' <-> '.join(group)}" for group in groups)
    folders = modules_in_folders()
    yield f"widest folder: {folders[0][0]} ({folders[0][1]} modules)"
    yield f"modules per folder: {', '.join(f'{folder} {count}' for folder, count in folders)}"
    yield from _top("attributes of a class", class_sizes())
    branchy = branchy_functions()
    above = sum(one.size > BRANCHES_MAX for one in branchy)
    yield from _top(f"branches of a function ({above} above {BRANCHES_MAX})", branchy)
    yield from _all(f"functions above {FUNCTION_LINES_MAX} lines", long_functions())
    yield from _all(f"modules above {MODULE_LINES_MAX} lines", long_modules())
    doubles = double_class_names()
    yield f"class names with two meanings: {len(doubles)}"
    yield from (f"    {name}: {', '.join(where)}" for name, where in doubles.items())
    yield from _in_modules(f"fields written from outside, in {PURE}", outside_writes())
    yield from _in_modules(f"containers changed from outside, in {PURE}", outside_changes())


def _in_modules(title: str, found: list[tuple[str, int, str]]) -> Iterator[str]:
    yield f"{title}: {len(found)}"
    for name in sorted({where for where, _, _ in found}):
        listed = [f"{line} {what}" for where, line, what in found if where == name]
        yield f"    {name} ({len(listed)}): {', '.join(listed)}"


def _top(title: str, found: Iterable[Named]) -> Iterator[str]:
    listed = [f"{one.where}.{one.name} {one.size}" for one in found][:SHOWN]
    yield f"{title}: {', '.join(listed)}"


def _all(title: str, found: list[Named]) -> Iterator[str]:
    yield f"{title}: {len(found)}"
    yield from (f"    {one.where}{'.' * bool(one.name)}{one.name} {one.size}" for one in found)


def main() -> int:
    for line in report():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
