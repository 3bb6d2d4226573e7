"""docs/when-something-stands.md is the code's own list, whole; every cause is told somewhere, and by its name alone."""

from __future__ import annotations

import ast
from types import ModuleType

import pytest
from tests.tidy.causes import PAGE, page
from tests.tidy.tree import ROOT, python_files

from chaos_protocols.cause_texts import inside, links, outside
from chaos_protocols.cause_texts.kinds import Meaning, Place
from chaos_protocols.causes import BY_CODE, Cause

PRODUCT = [path for path in python_files() if path.is_relative_to(ROOT / "protocols") or "chaosd" in path.parts]
LIST = ROOT / "protocols" / "chaos_protocols" / "causes.py"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.tidy.causes`"


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.code)
def test_a_cause_has_a_sentence_somebody_who_is_waited_for_and_something_to_do(cause: Cause) -> None:
    meaning = cause.value
    assert BY_CODE[meaning.code] is cause, "no other cause has its code"
    assert len(meaning.code) <= 64, "it travels as a label"
    for text in (meaning.text, meaning.waits_for, meaning.remedy):
        assert text and "\n" not in text and not text.endswith("."), "one sentence, to be put into others"
    told = cause.told(**dict.fromkeys(cause.fields, "x"))
    assert told.cause is cause and "{" not in told.text


def test_every_cause_is_found_by_the_code() -> None:
    """A cause that nobody tells would be a promise of the page."""
    used = {
        node.attr
        for path in PRODUCT
        if path != LIST
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Cause"
    }
    by_name = {Cause.NOT_NOW.name}  # what `by_code` makes of a code of another release
    assert {cause.name for cause in Cause} - used - by_name == set()


@pytest.mark.parametrize("texts", [outside, inside, links])
def test_every_text_is_that_of_the_cause_of_its_name(texts: ModuleType) -> None:
    written = {name: one for name, one in vars(texts).items() if isinstance(one, Meaning)}
    assert written == {name: Cause[name].value for name in written}


def test_there_are_causes_for_every_place() -> None:
    assert {cause.value.place for cause in Cause} == set(Place)
