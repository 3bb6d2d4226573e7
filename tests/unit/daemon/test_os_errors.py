"""What the operating system refuses is told by its cause, with a remedy; nobody is blamed who has nothing to do with
it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import types
from pathlib import Path

import pytest

from chaosd.api.client import LocalClient, NoDaemonError, SocketUnusableError
from chaosd.cli import main
from chaosd.os_errors import FILES_FIXED, explain, files_allowed, raise_files_allowed


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "ulimit -n"),
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "no permission"),
        (errno.EPERM, "no permission"),
        (errno.EROFS, "read-only"),
        (errno.EEXIST, "move it away"),
        (errno.ENOTDIR, "a part of that path is a file"),
        (errno.ENAMETOOLONG, "shorter"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_an_error_is_told_with_its_file_and_what_to_do(number: int, words: str) -> None:
    told = explain(OSError(number, os.strerror(number)), "/data/journal")
    assert told.startswith("/data/journal: ") and words in told


def test_a_path_too_long_for_a_socket_is_told_as_such(tmp_path: Path) -> None:
    client = LocalClient(tmp_path / ("x" * 120))
    with pytest.raises(SocketUnusableError, match=r"has \d+ bytes, and the path of a unix socket at most \d+"):
        client.status()


def test_nobody_there_is_no_daemon_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(NoDaemonError, match="no daemon answers") as caught:
        LocalClient(tmp_path / "s").status()
    assert not isinstance(caught.value, SocketUnusableError)
    (tmp_path / "file").touch()
    with pytest.raises(SocketUnusableError, match="a part of that path is a file"):
        LocalClient(tmp_path / "file" / "s").status()


def test_a_daemon_takes_the_files_that_it_may_have_and_says_when_they_are_too_few() -> None:
    code = (
        "import resource; from chaosd.os_errors import *\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, {hard}))\n"
        "print(raise_files_allowed(2)); print(files_allowed())"
    )

    def told(hard: int) -> list[str]:
        ended = subprocess.run(
            [sys.executable, "-c", code.format(hard=hard)], capture_output=True, text=True, timeout=150, check=True
        )
        return ended.stdout.splitlines()

    assert told(400) == ["", "400"]
    few, allowed = told(48)
    assert allowed == "48" and "ulimit -n 1024" in few and str(FILES_FIXED + 10) in few
    assert files_allowed() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert raise_files_allowed(0) == ""


def test_a_command_tells_a_defect_in_a_line_and_shows_the_calls_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise LookupError("no such thing")

    monkeypatch.setattr("chaosd.cli.app.app", fails)
    monkeypatch.delenv("CHAOS_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == (
        "chaosd: LookupError: no such thing; this is a defect of chaosd, CHAOS_TRACEBACK=1 shows where\n"
    )
    monkeypatch.setenv("CHAOS_TRACEBACK", "1")
    with pytest.raises(LookupError):
        main()


def test_a_command_tells_what_the_system_refuses_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/data")

    monkeypatch.setattr("chaosd.cli.app.app", fails)
    monkeypatch.delenv("CHAOS_TRACEBACK", raising=False)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.startswith("chaosd: /data: Permission denied: this user has no permission")


def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loading(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "chaosd.cli.app", Loading("chaosd.cli.app"))
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == ""
