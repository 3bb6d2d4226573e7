"""Whose is what a lab made: what dead labs left is removed, all else is left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from chaos_lab import cleaning
from chaos_lab.cleaning import FOLDER_PREFIX, NAMESPACE, OWNER_FILE, clean, lives, mark, namespace_prefix, owner


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Labs' folders are looked for here alone, and there are no namespaces."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cleaning, "SHARED_FOLDER", str(tmp_path))
    monkeypatch.setattr(cleaning, "RUN_NETNS", str(tmp_path / "no-namespaces"))
    return tmp_path


def folder_of(place: Path, name: str, text: str | None) -> Path:
    folder = place / f"{FOLDER_PREFIX}{name}"
    folder.mkdir()
    if text is not None:
        (folder / OWNER_FILE).write_text(text, encoding="ascii")
    return folder


def ended() -> tuple[int, int]:
    """A process that has ended: its id, and some time at which it cannot have started."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid, 1


def test_a_process_lives_only_with_the_time_at_which_it_started() -> None:
    process, started = owner()
    assert process == os.getpid() and lives(process, started)
    assert not lives(process, started - 1), "another process had this id before"
    assert not lives(*ended())


def test_a_namespace_carries_its_owner_and_two_networks_of_one_process_differ() -> None:
    found = NAMESPACE.fullmatch(f"{namespace_prefix()}-7")
    assert found is not None and (int(found[1]), int(found[2])) == owner()
    assert namespace_prefix() != namespace_prefix()
    assert NAMESPACE.fullmatch("chaoslab-of-somebody-else") is None


def test_the_folder_of_a_dead_lab_goes_with_the_processes_in_it(place: Path) -> None:
    folder = folder_of(place, "dead", "{} {}\n".format(*ended()))
    script = folder / "site" / "daemon.py"
    script.parent.mkdir()
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n", encoding="ascii")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as left:
        assert left.stdout is not None and left.stdout.readline() == b"up\n"
        assert clean() == [f"folder {folder} of a lab that ended, 1 processes of it"]
        assert left.wait(60) != 0
    assert not folder.exists()


def test_folders_of_living_labs_and_folders_without_an_owner_stay(place: Path) -> None:
    living, kept, torn = folder_of(place, "a", None), folder_of(place, "b", None), folder_of(place, "c", "12")
    mark(living)
    assert clean() == []
    assert living.exists() and kept.exists() and torn.exists()


def test_what_a_dead_labs_script_has_started_goes_with_it_though_it_names_no_path(place: Path) -> None:
    folder = folder_of(place, "dead", "{} {}\n".format(*ended()))
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    environment = {**os.environ, "TMPDIR": str(folder / "site")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as left:
        try:
            assert left.stdout is not None and left.stdout.readline() == b"up\n"
            assert clean() == [f"folder {folder} of a lab that ended, 1 processes of it"]
            assert left.wait(60) != 0
        finally:
            left.kill()


CLEANS_BESIDE = """
import sys, tempfile
from chaos_lab import cleaning
tempfile.tempdir = cleaning.SHARED_FOLDER = sys.argv[1]
cleaning.RUN_NETNS = "none"
print(cleaning.clean())
"""


def test_the_shell_in_which_somebody_cleans_lives_though_its_words_name_the_folder(place: Path) -> None:
    folder = folder_of(place, "dead", "{} {}\n".format(*ended()))
    shell = ["sh", "-c", f'ls {folder}/ && "$0" "$@"; echo done', sys.executable, "-c", CLEANS_BESIDE, str(place)]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done
    assert f"['folder {folder} of a lab that ended']" in done.stdout and not folder.exists()


def test_a_folder_that_another_clean_takes_away_meanwhile_is_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (folder_of(place, name, "{} {}\n".format(*ended())) for name in "ab")
    read = Path.read_text

    def taken_away(path: Path, *arguments: Any, **named: Any) -> str:
        text = read(path, *arguments, **named)
        if path.parent == first:
            shutil.rmtree(first)
        return text

    monkeypatch.setattr(Path, "read_text", taken_away)
    assert clean() == [f"folder {second} of a lab that ended"]


def test_an_ordinary_user_cleans_his_folders_beside_the_namespaces_of_root(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespaces = place / "netns"
    namespaces.mkdir()
    (namespaces / "chaoslab-{}-{}-0-1".format(*ended())).touch()
    monkeypatch.setattr(cleaning, "RUN_NETNS", str(namespaces))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    folder = folder_of(place, "dead", "{} {}\n".format(*ended()))
    assert clean() == [f"folder {folder} of a lab that ended"]
