"""A worker group's folder goes with its controller, or with the next one where that was killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaosd.worker_group.board import FOLDER_PREFIX
from chaosd.worker_group.folder import LOCK_NAME, group_folder, remove_left_behind

HOLDS = """
import sys
from chaosd.worker_group.folder import group_folder
with group_folder() as folder:
    (folder / "group.sock").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def other(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A controller in a process of its own, and its folder."""
    variables = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_what_a_killed_controller_left_is_removed_and_a_living_ones_is_not(
    place: Path, other: tuple[subprocess.Popen[str], Path]
) -> None:
    process, folder = other
    with group_folder() as own:
        assert folder.is_dir() and own.parent == folder.parent == place
    assert not own.exists()
    process.kill()
    process.wait()
    assert (folder / "group.sock").exists()
    with group_folder() as own:
        assert set(place.iterdir()) == {own}


@pytest.mark.parametrize("kind", ["no-lock", "link", "link-as-lock", "other"])
def test_what_may_be_somebody_elses_is_left_alone(
    place: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    kept = tmp_path_factory.mktemp("kept")
    (kept / LOCK_NAME).touch()
    folder = place / (f"{FOLDER_PREFIX}abc" if kind != "other" else "chaos-abc")
    if kind == "link":
        folder.symlink_to(kept)
    else:
        folder.mkdir()
    if kind == "link-as-lock":
        (folder / LOCK_NAME).symlink_to(kept / LOCK_NAME)
    if kind == "other":
        (folder / LOCK_NAME).touch()
    remove_left_behind(place)
    assert folder.exists() and (kept / LOCK_NAME).exists()


def test_a_folder_of_another_user_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / f"{FOLDER_PREFIX}abc"
    folder.mkdir()
    (folder / LOCK_NAME).touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        remove_left_behind(place)
    assert folder.exists()
    remove_left_behind(place)
    assert not folder.exists()


def test_where_files_cannot_be_locked_the_folder_is_made_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with group_folder() as folder:
        assert not (folder / LOCK_NAME).exists()
        remove_left_behind(place)
        assert folder.is_dir()
    assert not folder.exists()
