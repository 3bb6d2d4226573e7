"""Commands of other packages: added where they are installed, and missed in plain words where they are not."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from chaosd.cli.plug_ins import GROUP, installed, plug_in

LAB = EntryPoint(name="lab", value="chaos_lab.cli:register", group=GROUP)


def answer(points: list[EntryPoint], *words: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command("other")(lambda: None)
    plug_in(app, points)
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output + result.stderr


def test_the_lab_is_installed_as_a_plug_in() -> None:
    assert LAB in list(installed())


def test_an_installed_plug_in_brings_its_commands() -> None:
    code, text = answer([LAB], "lab", "run", "--help")
    assert code == 0 and "scenario" in text


@pytest.mark.parametrize("words", [["lab"], ["lab", "run", "x.toml", "--plain"], ["lab", "--help"]])
def test_a_command_whose_plug_in_is_missing_says_what_is_missing(words: list[str]) -> None:
    code, text = answer([], *words)
    text = " ".join(text.split())
    assert code == 2
    assert "`chaosd lab` is not there: it is not installed" in text
    assert "the package chaos_lab" in text and "pip install" in text


def test_a_plug_in_that_cannot_be_loaded_takes_no_other_command_away() -> None:
    broken = EntryPoint(name="lab", value="no_such_package.cli:register", group=GROUP)
    assert answer([broken], "other") == (0, "")
    code, text = answer([broken], "lab", "run")
    assert code == 2 and "No module named 'no_such_package'" in " ".join(text.split())
