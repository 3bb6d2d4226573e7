"""Which interpreters a release is tried with."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from tests.packaging.release import PROMISED, interpreters


def python(folder: Path, name: str, says: str) -> str:
    """A program that answers as an interpreter of that release."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {says}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_own_interpreter_comes_first_then_those_that_are_named_then_those_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "{}.{}".format(*sys.version_info[:2])
    others = [release for release in PROMISED if release != own]
    monkeypatch.setenv("PATH", str(tmp_path))
    for release in PROMISED:
        python(tmp_path, f"python{release}", release)
    named = python(tmp_path, "another", others[0])
    found = interpreters([named])
    assert list(found) == [own, *others]
    assert [found[release] for release in found] == [sys.executable, named, f"python{others[1]}"]


@pytest.mark.parametrize("says", ["2.7", "no version", ""])
def test_a_named_interpreter_that_is_none_of_those_promised_is_refused(tmp_path: Path, says: str) -> None:
    with pytest.raises(ValueError, match=r"is no interpreter of 3\.11, 3\.12, 3\.13"):
        interpreters([python(tmp_path, "odd", says)])
    with pytest.raises(ValueError, match="no interpreter"):
        interpreters([str(tmp_path / "is-not-there")])
