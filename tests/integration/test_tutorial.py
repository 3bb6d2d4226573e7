"""The tutorial and the how-tos: every script that they show runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs.site import ROOT
from tests.tidy.test_docs import blocks

PAGES = {"tutorial": ROOT / "docs" / "tutorial.md", "fine-tune": ROOT / "docs" / "how-to" / "fine-tune.md"}


@pytest.mark.parametrize(("page", "scripts"), [("tutorial", 3), ("fine-tune", 1)])
def test_the_scripts_of_a_page_run_as_they_stand(tmp_path: Path, page: str, scripts: int) -> None:
    texts = blocks(PAGES[page], "python")
    assert len(texts) == scripts
    for number, text in enumerate(texts):
        path = tmp_path / f"script{number}.py"
        path.write_text(text, encoding="utf-8")
        arguments = ["0", "--alone"] if "--alone" in text else []
        done = subprocess.run(
            [sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
