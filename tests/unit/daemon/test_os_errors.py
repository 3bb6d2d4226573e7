"""What the operating system refuses is told by its cause, with a remedy; nobody is blamed who has nothing to do with
it."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
import types
from contextlib import closing
from pathlib import Path

import pytest
import typer

from chaosd.api.client import LocalClient, NoDaemonError, SocketUnusableError
from chaosd.cli import main
from chaosd.cli.start import become
from chaosd.os_errors import FILES_FIXED, explain, explain_listening, files_allowed, may_pass, raise_files_allowed
from chaosd.transport.errors import ListenError
from chaosd.unix_sockets import UnixListener


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
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "too little memory"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_an_error_is_told_with_its_file_and_what_to_do(number: int, words: str) -> None:
    told = explain(OSError(number, os.strerror(number)), "/data/journal")
    assert told.startswith("/data/journal: ") and words in told


@pytest.mark.parametrize(
    ("number", "passes"),
    [
        (errno.ENOSPC, True),
        (errno.EROFS, True),
        (errno.EADDRNOTAVAIL, True),
        (errno.EADDRINUSE, True),
        (errno.EACCES, False),
        (errno.ENOTDIR, False),
    ],
)
def test_what_a_later_start_may_find_mended_is_known_by_what_the_system_said(number: int, passes: bool) -> None:
    told = RuntimeError("the journal cannot be written")
    told.__cause__ = OSError(number, os.strerror(number))
    assert may_pass(told) is passes and may_pass(told.__cause__) is passes
    assert not may_pass(RuntimeError("the configuration is wrong"))


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EADDRNOTAVAIL, 1), (errno.EACCES, 2)])
def test_a_daemon_that_cannot_start_ends_with_2_only_where_no_later_start_could(number: int, code: int) -> None:
    """2 is what a service manager does not start again."""

    def run() -> int:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise ListenError("no way to listen") from error

    with pytest.raises(typer.Exit) as ended:
        become(run)
    assert ended.value.exit_code == code


def test_a_disk_on_which_the_history_finds_no_room_may_have_some_later(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as history:
        history.execute("PRAGMA max_page_count = 2")
        history.execute("CREATE TABLE one (text)")
        with pytest.raises(sqlite3.OperationalError, match="full") as full:
            history.execute("INSERT INTO one VALUES (?)", ("x" * 100_000,))
        with pytest.raises(sqlite3.OperationalError, match="syntax") as wrong:
            history.execute("nonsense")
    assert may_pass(full.value) and not may_pass(wrong.value)


def test_a_socket_file_that_cannot_be_removed_does_not_hide_why_the_daemon_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = UnixListener(tmp_path / "s", "api_socket")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        listener.close()
    assert "read-only" in caplog.text and (tmp_path / "s").exists()
    UnixListener(tmp_path / "s", "api_socket").close()
    assert not (tmp_path / "s").exists(), "the next start replaces it"


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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("can't start new thread"), "no further process or thread"),
        (MemoryError(), "MemoryError: too little"),
    ],
)
def test_too_few_threads_or_too_little_memory_is_no_defect_and_has_a_remedy(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("chaosd.cli.app.app", fails)
    monkeypatch.delenv("CHAOS_TRACEBACK", raising=False)
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert words in told and "ulimit" in told and "defect" not in told


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


def test_an_address_of_one_network_alone_wants_its_interface() -> None:
    told = explain_listening(OSError(errno.EINVAL, "Invalid argument"), "[fe80::1]:7400")
    assert "name its interface" in told and "%eth0" in told
    assert "Invalid argument" in explain_listening(OSError(errno.EINVAL, "Invalid argument"), "[::1]:7400")
