"""A new site on disk."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaosd.config.making import make_site
from chaosd.config.model import load_config


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_peer_stands_in_the_file_as_it_was_given_whatever_letters_it_has(tmp_path: Path) -> None:
    peer = {"site": "b" * 32, "address": 'a"b\\.example:7400', "name": 'x"'}
    file, _, config = make_site(tmp_path / "site", {"peers": [peer]})
    (one,) = load_config(file).peers
    assert one.model_dump() == peer and config.peers == (one,)


def test_git_does_not_take_the_key_of_a_site_along(tmp_path: Path) -> None:
    """`chaosd up` in a folder that git tracks, then `git add -A`."""
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    make_site(tmp_path / "site", {})
    told = subprocess.run([*git, "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True).stdout
    assert told == "?? site/chaosd.toml\n"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077], indirect=True)
def test_nobody_else_may_write_what_the_daemon_believes_and_runs(tmp_path: Path, umask: int) -> None:
    """The configuration names whom it trusts, and a program (`on_hang`); who may write the folder may replace both."""
    file, _, config = make_site(tmp_path / "institution" / "site", {})
    for path in (file, file.parent, config.data_dir):
        assert not stat.S_IMODE(path.stat().st_mode) & (0o022 | umask), path
