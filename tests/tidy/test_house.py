"""Limits of the house: no import circle, no function with too many branches, no class name with two meanings.

`make house` prints all figures.
"""

from __future__ import annotations

import ast

import pytest
from tests.tidy import house
from tests.tidy.tree import PACKAGES, shown


def test_no_modules_import_each_other_round_about() -> None:
    assert house.circles(type_only=True) == []


def test_an_import_is_seen_and_a_circle_of_several_modules() -> None:
    modules = house.modules()
    names = house.imported(modules["chaos_protocols.membership.participation"], type_only=True)
    assert "chaos_protocols.state.machine" in names
    assert house.strong_components({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [("a", "b", "c")]


def test_no_function_has_too_many_branches() -> None:
    above = [one for one in house.branchy_functions() if one.size > house.BRANCHES_MAX]
    assert above == []


def test_no_class_name_has_two_meanings() -> None:
    assert house.double_class_names() == {}


def test_a_field_is_written_where_its_class_stands() -> None:
    assert [f"{module}, line {line}: {target}" for module, line, target in house.outside_writes()] == []


def test_a_container_is_changed_where_its_class_stands() -> None:
    assert [f"{module}, line {line}: {call}" for module, line, call in house.outside_changes()] == []


def test_the_figures_are_those_of_every_package() -> None:
    places = {shown(module.path) for module, _ in house.classes()}
    assert all(any(place.startswith(package + "/") for place in places) for package in PACKAGES)


def test_every_figure_is_printed() -> None:
    printed = "\n".join(house.report())
    for title in (
        "import circles",
        "widest folder",
        "attributes of a class",
        "branches of a function",
        "two meanings",
        "containers",
    ):
        assert title in printed


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(): return 1", 0),
        ("def f(a, b, c):\n    if a and b or c:\n        return 1 if a else 2", 4),
        ("def f(a):\n    for b in [c for c in a if c]:\n        try: g()\n        except E: pass", 3),
        ("def f(a):\n    match a:\n        case 1: pass\n        case 2: pass", 1),
    ],
)
def test_branches_are_counted_as_the_module_says(source: str, count: int) -> None:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert house.branches(function) == count


OUTSIDE = """
class A:
    def f(self, b):
        self.x = set()
        self.x.add(1)
        b.y, c = 1, 2
        self.z.y[0] = 3
        self.z.y.add(4)
        for one in b.parts.values():
            one.todo.popleft()
        b.x.add(5)
"""


def test_a_write_to_a_field_of_another_modules_object_is_seen() -> None:
    tree = ast.parse(OUTSIDE)
    (node,) = tree.body
    assert isinstance(node, ast.ClassDef)
    assert house.attributes(node) == {"x"}
    assert [what for _, what in house.writes_of(tree)] == ["b.y", "self.z.y[0]"]


def test_a_change_to_a_container_of_another_modules_object_is_seen() -> None:
    assert sorted(house.changes_of(ast.parse(OUTSIDE))) == [(8, "self.z.y.add"), (10, "one.todo.popleft")]
