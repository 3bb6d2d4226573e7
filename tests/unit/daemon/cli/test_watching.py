"""`--watch` of every command is one loop: a line or a picture each time, until Ctrl+C or nothing is to be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.text import Text

from chaosd import cli
from chaosd.cli.watching import watch


@pytest.mark.parametrize("as_json", [True, False], ids=("lines", "picture"))
@pytest.mark.parametrize("end", ["nothing", "ctrl-c"])
def test_it_shows_what_is_seen_until_the_end(
    as_json: bool, end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)

    def looks() -> Iterator[int | None]:
        yield from (41, 42)
        if end == "ctrl-c":
            raise KeyboardInterrupt
        yield None

    seen = looks()
    watch(lambda: next(seen), lambda number: Text(f"number {number}"), every_s=0.5, as_json=as_json)
    printed = capsys.readouterr().out
    assert waits == [0.5, 0.5]
    word = "" if as_json else "number "
    assert printed.splitlines() == [f"{word}41", f"{word}42"], "a pipe or a file sees each as it comes"


def test_no_command_has_a_loop_of_its_own() -> None:
    """Who sleeps in a command of the line does it here, or waits for something that it asked for."""
    sleepers = {
        path.name
        for path in Path(cli.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "sleep"
    }
    live = {path.name for path in Path(cli.__file__).parent.glob("*.py") if "rich.live" in path.read_text("utf-8")}
    assert live == {"watching.py"} and "watching.py" in sleepers, (live, sleepers)
    assert not sleepers & {"status.py", "workers.py"}
