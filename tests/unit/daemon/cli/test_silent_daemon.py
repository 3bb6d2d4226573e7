"""A daemon that is there and does not answer (stopped, overloaded): nobody is told to start another one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.daemon.cli.invoking import Run, away, run

from chaosd.api import client
from chaosd.config.model import SiteConfig
from chaosd.doctor.asked import examine_peer
from chaosd.doctor.check import Level
from chaosd.doctor.site import check_daemon

__all__ = ["away", "run"]


@contextlib.contextmanager
def stopped(path: Path, *, waiting: int = 0) -> Iterator[None]:
    """A daemon that accepts nobody, at which so many commands have given up already, as many as its queue takes."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(max(0, waiting - 1))
        for _ in range(waiting):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        yield


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANSWER_TIMEOUT_S", "CHANGE_TIMEOUT_S"):
        monkeypatch.setattr(client, name, 0.1)
    monkeypatch.setattr(client.LocalClient.ask, "__kwdefaults__", {"timeout_s": 0.1})


@pytest.mark.parametrize("waiting", [0, 3])
@pytest.mark.parametrize("words", [["status"], ["leave"], ["events", "--last", "1"]])
def test_a_daemon_that_does_not_answer_is_not_to_be_started_once_more(
    run: Run, tmp_path: Path, words: list[str], waiting: int
) -> None:
    with stopped(tmp_path / "api.sock", waiting=waiting):
        told = run(*words, "--data-dir", tmp_path, code=3).stderr
    assert f"the daemon at {tmp_path}/api.sock does not answer" in told and "kill -CONT" in told
    assert "Start one" not in told and "ulimit" not in told


@pytest.mark.parametrize("waiting", [0, 3])
def test_doctor_does_not_take_it_for_none(tmp_path: Path, waiting: int) -> None:
    with stopped(tmp_path / "api.sock", waiting=waiting):
        found = check_daemon(SiteConfig(data_dir=tmp_path))
        (asked,) = examine_peer(client.LocalClient(tmp_path / "api.sock"), "beta")
    for check in (found, asked):
        assert check.level is Level.FAIL and "does not answer" in check.found and "kill -CONT" in check.remedy
