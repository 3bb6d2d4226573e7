"""What a script is: its statements, as its file held them at the beginning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TELLS = "from chaos.worker_group.script import script_digest\nprint(script_digest())\n"


def digest_of(script: Path, text: str) -> str:
    script.write_text(text, encoding="utf-8")
    return subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True).stdout.strip()


def test_statements_count_and_comments_and_layout_do_not(tmp_path: Path) -> None:
    one = digest_of(tmp_path / "one.py", f"{TELLS}lr = 0.1\n")
    same = digest_of(tmp_path / "other.py", f"# a remark\n{TELLS}\n\nlr = (0.1)  # another\n")
    assert len(one) == 64 and same == one
    assert digest_of(tmp_path / "third.py", f"{TELLS}lr = 0.2\n") != one


@pytest.mark.parametrize("how", [["-c", TELLS], ["-"]], ids=("words", "input"))
def test_a_script_without_a_file_has_none(how: list[str]) -> None:
    found = subprocess.run([sys.executable, *how], input=TELLS, check=True, capture_output=True, text=True)
    assert found.stdout == "\n"


def test_what_runs_is_what_the_file_held_when_it_was_asked_first(tmp_path: Path) -> None:
    changes = "open(__file__, 'a').write('more = 1')\nprint(script_digest())\n"
    first, second = digest_of(tmp_path / "one.py", TELLS + changes).split()
    assert first == second
