"""What a daemon gives its parts, so that what each of them checks is asked of this site's own run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.protocols.one_site import B, C, roster_of

from chaos_lab.children import free_port
from chaos_protocols.events import ForcedStop
from chaosd.config.model import SiteConfig
from chaosd.daemon import EXIT_FAILED, Daemon, run_daemon
from chaosd.driver import Driver
from chaosd.identity import Identity
from chaosd.log_format import ForTerminals
from chaosd.storage.history import History, HistoryError
from chaosd.storage.journal.journal import Journal, JournalError


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Of a site that is in a run with B; C is on the list of whom it trusts, and a guest. It is not started."""
    identity = Identity.create(tmp_path)
    config = SiteConfig(name="a", data_dir=tmp_path, listen="127.0.0.1:7400", trust=(C,), probe="iperf3")
    with (
        Journal.open(tmp_path, incarnation_floor=1, site=identity.site) as journal,
        History.open(tmp_path / "history.sqlite") as history,
    ):
        made = Daemon(config, identity, journal, history)
        made.driver.machine.replica.install(roster_of(identity.site, B, run_id="ab" * 16))
        yield made


def test_only_sites_of_the_run_may_have_a_program_started_and_are_waited_for_with_a_result(daemon: Daemon) -> None:
    """A guest is linked as they are; what it asks comes by the same ways."""
    meter, exchange = daemon.driver.meter, daemon.driver.bulk.reduce.exchange
    assert "only sites of the run" in meter._why_not(C) and not meter._why_not(B)
    assert exchange.may_hold(B) and not exchange.may_hold(C)


def test_checkpoints_are_found_by_the_run_that_the_site_is_in(daemon: Daemon) -> None:
    """Asked anew each time: a site joins, or goes over to another run, while its daemon runs."""
    folder = daemon.driver._keeper.folder
    assert folder is not None and folder._run_id() == "ab" * 16
    daemon.driver.machine.replica.install(roster_of(daemon.identity.site, B, run_id="cd" * 16))
    assert folder._run_id() == "cd" * 16


def test_a_daemon_does_not_start_with_the_journal_of_another_site(tmp_path: Path) -> None:
    """Its votes and its run are that one's."""
    Identity.create(tmp_path)
    with Journal.open(tmp_path, incarnation_floor=1, site=B):
        pass
    with pytest.raises(JournalError, match="the files of two sites are mixed"):
        run_daemon(SiteConfig(name="a", data_dir=tmp_path, listen="127.0.0.1:7400"), make=never)


def never(*_: object) -> Daemon:
    raise AssertionError("it starts")


def test_a_daemon_that_looks_at_its_links_no_more_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The task that looks dies of a defect: nobody would hear of it until the daemon ends for another reason."""

    async def dies(driver: Driver, *_: object) -> None:
        asyncio.get_running_loop().call_later(5.0, driver.feed, ForcedStop(reason="the test"))
        raise RuntimeError("a defect")

    monkeypatch.setattr("chaosd.daemon.watch", dies)
    Identity.create(tmp_path)
    with caplog.at_level(logging.CRITICAL):
        code = run_daemon(SiteConfig(name="a", data_dir=tmp_path, listen=f"127.0.0.1:{free_port()}"))
    assert code == EXIT_FAILED and "the daemon must stop: a defect" in caplog.text
    assert not list(tmp_path.glob("*.sock"))


def test_a_daemons_log_is_written_without_what_a_terminal_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first line on, before it opens any file."""
    given: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda *, handlers, level: given.extend(handlers))

    def stop(*_: object, **__: object) -> None:
        raise HistoryError("the test")

    Identity.create(tmp_path)
    monkeypatch.setattr(History, "open", stop)
    with pytest.raises(HistoryError):
        run_daemon(SiteConfig(name="a", data_dir=tmp_path, listen="127.0.0.1:7400"))
    (handler,) = given
    assert any(isinstance(one, ForTerminals) for one in handler.filters)
