"""Names of the source, found by reading it: modules, what they define, members of classes, values of constants, files.

For the tests that follow citations: a name that a page shows must be something that is there. Nothing is imported, and
no list of modules is kept, so a module that moves takes its names along.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.tree import ROOT, python_files, shown, text_files

COMMENT = re.compile(r"(?:^|\s)#+ (.*)$")
"""Good enough: a text that looks like a comment is read as one."""

Members = dict[str, set[str]]
"""Of each class: methods, fields, nested names."""


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """Every module of the repository by its dotted path from the root; packages by their folder."""
    found = {}
    for path in python_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = (path, tree_of(path))
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules_ending() -> dict[str, list[str]]:
    """Modules by every tail of their dotted path: `raft.core` leads to the module of that name in any package."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sources():
        parts = name.split(".")
        for start in range(len(parts)):
            found[".".join(parts[start:])].append(name)
    return found


@cache
def top_names(module: str) -> set[str]:
    """What a module defines or imports at its top."""
    names: set[str] = set()
    for node in sources()[module][1].body:
        names |= set(_bound(node))
    return names


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.Assign(targets=targets):
            yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.If(body=body, orelse=orelse) | ast.Try(body=body, orelse=orelse):
            for one in (*body, *orelse):
                yield from _bound(one)
        case _:
            pass


@cache
def members() -> Members:
    """Members of every class of that name, those of its bases included."""
    own: Members = defaultdict(set)
    bases: Members = defaultdict(set)
    for _, tree in sources().values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            bases[node.name] |= {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            for one in node.body:
                own[node.name] |= set(_bound(one))
            for below in ast.walk(node):
                match below:
                    case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                        own[node.name].add(attribute)
    for _ in range(4):  # as deep as anybody inherits here
        for name, above in bases.items():
            for base in above & own.keys():
                own[name] |= own[base]
    return own


@cache
def fields() -> dict[str, list[tuple[str, ...]]]:
    """Annotated fields, in order, of every class of that name."""
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for _, tree in sources().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                body = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
                found[node.name].append(tuple(one.id for one in body if isinstance(one, ast.Name)))
    return found


@cache
def identifiers() -> set[str]:
    """Every name that the code uses anywhere."""
    names: set[str] = set()
    for _, tree in sources().values():
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    names.add(name)
                case ast.alias(name=name, asname=other):
                    names |= {name.rpartition(".")[2], other or name}
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
    return names


@cache
def literals() -> set[str]:
    """Every piece of text in the code that is no docstring, and the words of the files that are no code and no page."""
    found: set[str] = set()
    for name, (_, tree) in sources().items():
        for node in ast.walk(tree) if not name.startswith("tests.tidy") else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) <= 200:
                found.add(node.value)
    for path in text_files():
        if path.suffix in ("", ".toml", ".txt") and path.stat().st_size < 100_000:
            found |= set(re.findall(r"[\w.\-/]+", path.read_text(encoding="utf-8", errors="replace")))
    return found


@cache
def constants() -> dict[str, list[float]]:
    """Values of the constants at the top of modules of the product, as far as they are plain arithmetic."""
    known: dict[str, list[float]] = defaultdict(list)
    waiting = [
        (node.targets[0].id, node.value)
        for name, (_, tree) in sorted(sources().items(), key=lambda one: not one[0].startswith("protocols"))
        if not name.startswith("tests")
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
    ]
    for _ in range(3):  # a constant that is made of others waits for them
        left = []
        for name, value in waiting:
            number = _number(value, known)
            if number is None:
                left.append((name, value))
            elif number not in known[name]:
                known[name].append(number)
        waiting = left
    return known


def _number(node: ast.expr, known: dict[str, list[float]]) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if known.get(name):  # where several have it, that of the protocols
            return known[name][0]
        case ast.BinOp(left=left, op=operator, right=right):
            one, other = _number(left, known), _number(right, known)
            if one is None or other is None:
                return None
            match operator:
                case ast.LShift():
                    return int(one) << int(other)
                case ast.Mult():
                    return one * other
                case ast.Sub():
                    return one - other
                case ast.FloorDiv():
                    return one // other
    return None


def is_known(name: str) -> bool:
    """Whether a dotted or single name, as a page shows it, is something of the source."""
    parts = name.removesuffix("()").split(".")
    if len(parts) == 1:
        return parts[0] in identifiers() or parts[0] in literals() or parts[0] in modules_ending()
    if len(parts) == 2 and parts[1] in members().get(parts[0], ()):
        return True
    for count in range(len(parts), 0, -1):
        for module in modules_ending().get(".".join(parts[:count]), ()):
            rest = parts[count:]
            if not rest or (rest[0] in top_names(module) and (len(rest) == 1 or rest[1] in members().get(rest[0], ()))):
                return True
    return name in literals()


@cache
def places() -> frozenset[str]:
    """Files and folders of the checkout, and every tail of their paths."""
    files = {shown(path) for path in text_files()}
    whole = files | {str(above) for name in files for above in Path(name).parents}
    return frozenset("/".join(name.split("/")[start:]) for name in whole for start in range(name.count("/") + 1))


@cache
def is_place(name: str, *, beside: Path = ROOT) -> bool:
    """Whether a path as it is shown (from the root, from the page, or only its end) is there. `*`, and a word in
    capitals, stand for anything."""
    if (beside / name).exists() or (ROOT / name).exists() or name.rstrip("/") in places():
        return True
    pattern = re.sub(r"\b[A-Z]{2,}\b", "*", name.removeprefix("./").rstrip("/"))
    return pattern in places() or ("*" in pattern and any(fnmatch.fnmatch(place, pattern) for place in places()))


@cache
def remarks(path: Path) -> tuple[tuple[int, str], ...]:
    """Docstrings and comments of a module, each run of comment lines as one, with the line where it begins."""
    return tuple(_remarks(path))


def _remarks(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    run: list[str] = []
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        found = COMMENT.search(line)
        if found is not None:
            run.append(found[1])
        elif run:
            yield number - len(run), "\n".join(run)
            run = []
