"""Whom an operator means where a command names a site: what he calls it himself counts here, and is known to nobody
else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.protocols.one_site import B, C, roster_of

from chaos_protocols import events
from chaosd.api.client import CHANGE_TIMEOUT_S
from chaosd.api.operations import Operations
from chaosd.config.model import FAILURE_TIMEOUT_MAX_S, PeerConfig, SiteConfig
from chaosd.daemon import Daemon
from chaosd.identity import Identity
from chaosd.storage.history import History
from chaosd.storage.journal.journal import Journal

ITSELF = "site c"
"""What C calls itself, see `roster_of`."""


class Asked(Operations):
    """Of a site that is in a run with B and C: what they hand to its driver is kept, and answered at once."""

    def __init__(self, daemon: Daemon, history: History) -> None:
        super().__init__(daemon.driver, daemon.config, history)
        self.events: list[events.RecoverRequested | events.LinkChangeRequested] = []
        daemon.driver.machine.replica.install(roster_of(daemon.identity.site, B, C, run_id="ab" * 16))
        daemon.driver.feed = self._take  # type: ignore[assignment, method-assign]

    def _take(self, event: events.RecoverRequested | events.LinkChangeRequested) -> None:
        self.events.append(event)
        self._driver.answers[event.request].set_result((False, f"{B} offers nothing"))


Make = Callable[..., Asked]


@pytest.fixture
def operations_of(tmp_path: Path) -> Iterator[Make]:
    """With names for neighbours, as the operator has given them."""
    identity = Identity.create(tmp_path)
    with (
        Journal.open(tmp_path, incarnation_floor=1, site=identity.site) as journal,
        History.open(tmp_path / "history.sqlite") as history,
    ):

        def make(**called: str) -> Asked:
            sites = {"b": B, "c": C}
            peers = [PeerConfig(site=sites[one], address="127.0.0.1:1", name=name) for one, name in called.items()]
            config = SiteConfig(name="here", data_dir=tmp_path, listen="127.0.0.1:7400", peers=tuple(peers))
            return Asked(Daemon(config, identity, journal, history), history)

        yield make


async def test_a_state_is_chosen_by_what_its_site_is_called_here(operations_of: Make) -> None:
    operations = operations_of(b="Bern")
    outcome = await operations.recover("Bern", 7)
    assert [one.origin for one in operations.events] == [B]  # type: ignore[union-attr]
    assert outcome.reason == "Bern offers nothing"


@pytest.mark.parametrize("typed", [ITSELF, "d" * 32, "somebody", ""])
async def test_any_other_word_is_for_whoever_schedules(operations_of: Make, typed: str) -> None:
    operations = operations_of(b="Bern")
    await operations.recover(typed, 7)
    assert [one.origin for one in operations.events] == [typed]  # type: ignore[union-attr]


async def test_a_state_is_not_chosen_where_another_site_calls_itself_as_one_is_called_here(
    operations_of: Make,
) -> None:
    """He means B, as he reads everywhere; whoever schedules would take C's."""
    operations = operations_of(b=ITSELF)
    outcome = await operations.recover(ITSELF, 7)
    assert operations.events == [] and not outcome.done
    assert outcome.reason.startswith(f"more than one of the sites that are known here is '{ITSELF}'")


async def test_a_link_is_changed_by_what_its_other_end_is_called_here(operations_of: Make) -> None:
    operations = operations_of(c="Basel")
    await operations.change_link("Basel", add=True)
    assert [one.other for one in operations.events] == [C]  # type: ignore[union-attr]


async def test_a_change_of_a_link_is_answered_before_whoever_asks_takes_the_daemon_for_stopped(
    operations_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the longest failure timeout a negotiation may take five minutes, and `chaosd link` waits for two."""
    operations = operations_of()
    patient = operations._config.model_copy(update={"failure_timeout_s": FAILURE_TIMEOUT_MAX_S})
    monkeypatch.setattr(operations, "_config", patient)
    monkeypatch.setattr(operations._driver, "feed", lambda event: None)  # nobody schedules
    waited_s: list[float] = []

    async def passes(answer: object, timeout_s: float) -> None:
        waited_s.append(timeout_s)
        raise TimeoutError

    monkeypatch.setattr(asyncio, "wait_for", passes)
    outcome = await operations.change_link(C, add=True)
    assert not outcome.done and "the request goes on" in outcome.reason
    assert waited_s[0] < CHANGE_TIMEOUT_S
