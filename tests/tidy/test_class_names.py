"""A class name means one thing: no public class of the product's packages has a namesake in another module."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.tidy.tree import PACKAGES, python_files, shown

STILL_DOUBLE = {
    "Connection",
    "LeaveRequest",
    "LeaveRequested",
    "LinkRequest",
    "LinkState",
    "LocalProtocolError",
    "Progress",
    "ReduceFinished",
    "ReduceStalled",
    "RemoteProtocolError",
    "State",
    "TransferFailed",
    "TransferFinished",
    "Verdict",
}
"""Names that still have several meanings, to be renamed on one side and taken out here; nothing is added."""


def declared() -> dict[str, list[str]]:
    """Public classes at the top level of the product's modules, by name, with the modules that declare them."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files(PACKAGES):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(shown(path))
    return found


def test_a_class_name_has_one_meaning() -> None:
    doubles = {name: places for name, places in declared().items() if len(places) > 1 and name not in STILL_DOUBLE}
    assert not doubles


def test_no_name_is_excused_that_has_one_meaning_by_now() -> None:
    assert not {name for name in STILL_DOUBLE if len(declared().get(name, ())) < 2}


def test_the_search_reads_every_package() -> None:
    places = [place for found in declared().values() for place in found]
    assert all(any(place.startswith(package + "/") for place in places) for package in PACKAGES)
