"""Stories as files: what is told and which rule it shows, commands, `----`, and what the sites recorded.

The commands are described in `stage`, `moments` and `expectations`. `CHAOS_REWRITE=1` writes the second half anew; what
a story claims stands in its `expect`, `never` and `within` lines, which no rewriting changes.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from pathlib import Path

import pytest
from tests.simulation import expectations, moments, operating, stage
from tests.simulation.paths import Paths
from tests.simulation.stage import Stage, commands_of

FOLDER = Path(os.environ.get("CHAOS_SCENARIOS") or Path(__file__).parent / "scenarios")
REWRITE = os.environ.get("CHAOS_REWRITE") == "1"
STORIES = sorted(FOLDER.glob("*.txt"))
RULE = re.compile(r"\b(invariants?|spec)\s+\d")
TRACE_LINES_MAX = 60


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    head, _, expected = path.read_text(encoding="utf-8").partition("----\n")
    trace = "\n".join(Stage().play(commands_of(head))) + "\n"
    if REWRITE:
        path.write_text(f"{head}----\n{trace}", encoding="utf-8")
    assert trace == expected or REWRITE, f"{path.name} goes another way; see CHAOS_REWRITE in {Path(__file__).name}"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_says_what_it_shows_and_asserts_it(path: Path) -> None:
    head, _, trace = path.read_text(encoding="utf-8").partition("----\n")
    comment = " ".join(line for line in head.splitlines() if line.startswith("#"))
    assert RULE.search(comment), "the comment names no invariant and no rule of the spec"
    claims = [line for line in commands_of(head) if line.startswith(("expect ", "never ", "within "))]
    assert len(claims) >= 2, "a trace that is rewritten would hide a wrong behaviour"
    assert len(trace.splitlines()) <= TRACE_LINES_MAX, "too long for a reader's minute"


def test_there_are_enough_stories() -> None:
    assert len(STORIES) >= 75
    assert len({path.name.partition("-")[0] for path in STORIES}) == len(STORIES), "two stories have one number"


DESCRIBED_LINE = re.compile(r"^    ([a-z][a-z-]*)(?: \S+)*? {2,}\S", re.MULTILINE)
"""Of a module's head: a command, what goes with it, and behind two spaces and more what it does."""


def commands() -> set[str]:
    """Every word that a line of a story may begin with."""
    known = set(Paths.VERBS)
    for function in (Stage.command, Stage._at):
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            match node:
                case ast.MatchValue(value=ast.Constant(value=str(word))):
                    known.add(word)
                case ast.Dict(keys=keys):
                    known.update(key.value for key in keys if isinstance(key, ast.Constant))
    return known


def test_every_command_of_a_story_is_described() -> None:
    heads = " ".join(module.__doc__ or "" for module in (stage, moments, expectations, operating))
    assert len(commands()) > 50
    assert sorted(commands() - set(re.findall(r"[a-z][a-z-]*", heads))) == []


def test_every_command_that_is_described_is_there() -> None:
    described = DESCRIBED_LINE.findall(stage.__doc__ or "")
    assert len(described) > 15
    assert sorted(set(described) - commands()) == []
