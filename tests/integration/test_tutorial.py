"""The tutorial and the how-tos: every script that they show runs as it stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.rigs import warm
from tests.rigs.site import ROOT, environment
from tests.tidy.test_docs import blocks

PAGES = {"tutorial": ROOT / "docs" / "tutorial.md", "fine-tune": ROOT / "docs" / "how-to" / "fine-tune.md"}


SCRIPTS = {"tutorial": 3, "fine-tune": 1}


def test_no_script_is_left_out() -> None:
    assert {page: len(blocks(path, "python")) for page, path in PAGES.items()} == SCRIPTS


@pytest.mark.parametrize(("page", "number"), [(page, one) for page, count in SCRIPTS.items() for one in range(count)])
def test_a_script_runs_as_it_stands(tmp_path: Path, page: str, number: int) -> None:
    text = blocks(PAGES[page], "python")[number]
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    arguments = ["0", "--alone"] if "--alone" in text else []
    command = [sys.executable, str(path), *arguments]
    done = warm.run(command, folder=tmp_path, environment=environment(), limit_s=250)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
