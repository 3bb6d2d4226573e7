"""The file of the worker socket: what lies in its place, and where it may lie."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.unit.daemon.worker.worker_kit import Recorder

from chaosd.unix_sockets import UnixListener, UnixSocketError
from chaosd.worker.server import WorkerServer


async def test_stale_socket_file_is_replaced(socket_file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(socket_file))
    server = WorkerServer(socket_file, Recorder())
    await server.start()
    await server.close()
    assert not socket_file.exists()


async def test_other_file_in_the_sockets_place_is_never_removed(socket_file: Path) -> None:
    socket_file.write_text("precious")
    with pytest.raises(UnixSocketError, match="is no socket"):
        await WorkerServer(socket_file, Recorder()).start()
    assert socket_file.read_text() == "precious"


async def test_too_long_path_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnixSocketError, match="a unix socket's at most"):
        await WorkerServer(tmp_path / ("x" * 120), Recorder()).start()


def test_a_socket_in_a_folder_that_is_not_there_is_refused_with_what_to_do(socket_file: Path) -> None:
    nowhere = socket_file.parent / "no" / "w"
    with pytest.raises(UnixSocketError, match=rf"folder {nowhere.parent} is not there; make it .*another api_socket"):
        UnixListener(nowhere, "api_socket")
