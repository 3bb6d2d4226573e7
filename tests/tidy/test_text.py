"""House rules on text: nothing unfinished, nothing of one machine, docstrings everywhere, the glossary's words."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tidy.tree import PACKAGES, ROOT, python_files, shown, text_files

UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
HOME_OR_WORK = re.compile(r"(?<![\w.$~}*/-])/(?:home|Users|root|work)/\w")
"""A path that begins at a person's or a machine's own folder. A part of a longer path or of an address is none."""

REGISTRY = re.compile(r"https?://[^\s\"'`)]*(?:pypi|pythonhosted|npmjs|artifactory|nexus|/simple\b)", re.IGNORECASE)


def places(pattern: re.Pattern[str], *, besides: tuple[str, ...] = ()) -> list[str]:
    found = []
    for path in text_files():
        if shown(path) in besides:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{shown(path)}:{number}: {line.strip()[:100]}")
    return found


def test_there_is_text_to_look_at() -> None:
    names = {shown(path) for path in text_files()}
    assert {"Makefile", "pyproject.toml", ".ci/run", "LICENSE", "tests/tidy/test_text.py"} <= names
    assert not any(name.startswith((".venv/", ".git/", ".mypy_cache/")) for name in names)


def test_nothing_is_marked_as_unfinished() -> None:
    assert places(UNFINISHED) == []


def test_no_text_holds_a_path_of_one_machine() -> None:
    assert places(HOME_OR_WORK) == []


def test_no_text_holds_the_address_of_a_package_registry() -> None:
    assert places(REGISTRY) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# TO" + "DO: later"),
        (HOME_OR_WORK, "cd /ho" + "me/someone/x"),
        (HOME_OR_WORK, "path='/wo" + "rk/main'"),
        (REGISTRY, "--index-url https" + "://py" + "pi.example/simple"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


@pytest.mark.parametrize(
    "line", ["src/work/main.py", "$D/work/x", "https" + "://example.org/home/x", "the ~/work/folder"]
)
def test_the_patterns_leave_other_paths_alone(line: str) -> None:
    assert not HOME_OR_WORK.search(line)


def test_every_module_that_holds_anything_says_what_it_is_for() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in python_files()}
    assert [shown(path) for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


HEAD_LINES_MIN = 3
DRIVER = re.compile(r"\b(?:[Dd]riven by|[Dd]rives|asked by|Used by)\b")
PLANNERS = "chaosd/chaos_planner"
"""Its folders are asked, and drive nothing; the head of the package says by whom."""


def test_the_head_of_a_folder_says_what_it_decides_and_who_drives_it() -> None:
    heads = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in folders()}
    assert len(heads) > 30
    assert [shown(path) for path, head in heads.items() if len(head.splitlines()) < HEAD_LINES_MIN] == []
    driven = {path: head for path, head in heads.items() if not shown(path).startswith(PLANNERS)}
    assert [shown(path) for path, head in driven.items() if not DRIVER.search(head)] == []


def folders() -> list[Path]:
    return [path for path in python_files(PACKAGES) if path.name == "__init__.py"]


def defined_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def strangers(path: Path, banned: dict[str, str], allowed: set[str]) -> list[str]:
    found = []
    for name in [path.stem, *defined_names(ast.parse(path.read_text(encoding="utf-8")))]:
        for word in words_of(name):
            if word in banned and name not in allowed:
                found.append(f"{shown(path)}: {name}: the project's word is {banned[word]}")
    return found


def test_names_use_the_words_of_the_glossary() -> None:
    with (Path(__file__).parent / "glossary.toml").open("rb") as file:
        glossary = tomllib.load(file)
    banned = {word: right for right, entry in glossary.items() for word in entry["not"]}
    allowed = {name for entry in glossary.values() for name in entry.get("allowed", [])}
    assert [line for path in python_files(PACKAGES) for line in strangers(path, banned, allowed)] == []


def test_a_name_is_taken_apart_into_its_words() -> None:
    assert words_of("NodeExit_requestHTTPNode") == ["node", "exit", "request", "http", "node"]


def test_the_licence_is_the_one_that_the_metadata_names() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "LICENSE").read_text()
    assert metadata["license"] == "Apache-2.0"
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
