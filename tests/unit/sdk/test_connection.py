"""The SDK's end of the worker's socket, against bytes of a daemon of another release."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.daemon.worker.worker_kit import hello_message

from chaos import Coordinator
from chaos.connection import RETRY_INTERVAL_S, Connection, Wakeup, open_socket
from chaos.errors import DaemonProtocolError, NoDaemon
from chaos_protocols.wire.worker import FiguresLogged, TrainFrom, encode


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A script's connection, and the daemon's end of it."""
    ours, theirs = socket.socketpair()
    wakeup = Wakeup()
    connection = Connection(ours, wakeup)
    yield connection, theirs
    connection.close()
    theirs.close()
    wakeup.close()


def framed(**fields: object) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return len(body).to_bytes(4, "big") + body


def test_what_a_newer_daemon_says_is_skipped_where_it_may_be_and_the_next_message_is_not_kept_waiting(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, daemon = ends
    daemon.sendall(framed(type="Advice", optional=True, text="rest") * 2 + encode(TrainFrom(round=1)))
    assert connection.receive(0.0) == TrainFrom(round=1), "without a wait"


def test_a_field_that_a_newer_daemon_adds_is_left_out_of_account(ends: tuple[Connection, socket.socket]) -> None:
    connection, daemon = ends
    daemon.sendall(framed(type="TrainFrom", round=3, pace="slow"))
    assert connection.receive(30.0) == TrainFrom(round=3)


def test_what_may_not_be_skipped_ends_the_conversation_with_the_remedy(ends: tuple[Connection, socket.socket]) -> None:
    connection, daemon = ends
    daemon.sendall(framed(type="Advice", text="stop"))
    with pytest.raises(DaemonProtocolError, match="install both from the same version"):
        connection.receive(30.0)


def test_a_daemon_that_is_started_after_its_script_is_waited_for_and_the_script_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where both are started at once, the daemon reads a long journal, or the machine is busy."""
    path, now_s = tmp_path / "w", 0.0
    with socket.socket(socket.AF_UNIX) as daemon:

        def sleep(seconds: float) -> None:
            nonlocal now_s
            if now_s < 6.0 <= now_s + seconds:
                daemon.bind(str(path))
                daemon.listen()
            now_s += seconds

        monkeypatch.setattr("chaos.connection.time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
        Coordinator(path, handle_signals=False).close()
    assert now_s == pytest.approx(6.0, abs=RETRY_INTERVAL_S)
    assert capsys.readouterr().err == (
        f"chaos: no chaosd answers at {path} yet; waiting up to 10 s for one that is just starting\n"
    )


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), PermissionError(13, "Permission denied")])
def test_what_no_daemon_that_starts_would_mend_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    with pytest.raises(NoDaemon, match="bytes, more than a unix socket can have"):
        open_socket(Path("/" + "x" * 120), 3600.0)

    def connect(self: socket.socket, address: str) -> None:
        raise error

    monkeypatch.setattr("chaos.connection.socket.socket.connect", connect, raising=False)
    with pytest.raises(NoDaemon):
        open_socket(tmp_path / "w", 3600.0)


def test_what_another_thread_logs_comes_after_the_hello_that_is_under_way(
    ends: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, daemon = ends
    logged = FiguresLogged(round=1, figures={"loss": 1.0})
    logging = threading.Thread(target=connection.send, args=(logged,))
    real = socket.send_fds

    def send_fds(*arguments: Any) -> int:
        sent = real(*arguments)
        logging.start()
        logging.join(0.2)
        return sent

    monkeypatch.setattr(socket, "send_fds", send_fds)
    connection.hello(hello_message(), 0)
    logging.join()
    wanted, came = encode(hello_message()) + encode(logged), b""
    while len(came) < len(wanted):
        came += daemon.recv(1 << 20)
    assert came == wanted
