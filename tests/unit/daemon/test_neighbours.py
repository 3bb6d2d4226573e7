"""What a site at the other end does counts: what it says holds its link, and a broken rule closes it and keeps it
outside (spec 4.17, 4.18). How much and how long is `test_conduct.py`'s."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.daemon.neighbours_kit import Rig
from tests.unit.protocols.one_site import B, C, heartbeat

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.events import DialFailed
from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.wire.control import CodecError
from chaosd import conduct as limits
from chaosd.driver import Driver
from chaosd.metrics import Metrics
from chaosd.neighbours import REASON_MAX
from chaosd.transport import DialError


class HearingRig(Rig):
    """Both have a link: C is a guest."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patch)
        self.linked += [B, C]
        self.driver.links = lambda: [SimpleNamespace(site=site) for site in self.linked]
        self.driver.metrics, self.driver.auth, self.driver.bulk = Metrics(), self, self
        self.wrong: Exception | None = None

    def decode(self, site: SiteId, frame: bytes) -> Any:
        """For `MessageAuth`."""
        if self.wrong is not None:
            raise self.wrong
        return self.bench.envelope(site, heartbeat())

    def buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> None:
        """For the bulk streams."""
        raise RemoteProtocolError("no such lane")

    def received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        raise RemoteProtocolError("not what was announced")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HearingRig:
    return HearingRig(tmp_path, monkeypatch)


def test_who_says_too_much_is_not_read_for_a_while_and_every_word_counts_by_its_length(rig: HearingRig) -> None:
    said = rig.neighbours.control_received
    assert [said(C, b"") for _ in range(limits.GUEST_MESSAGES_AT_ONCE)] == [0.0] * limits.GUEST_MESSAGES_AT_ONCE
    assert said(C, b"") > 0.0 and said(B, b"") == 0.0
    short = said(C, b"")
    assert said(C, bytes(100 * limits.GUEST_MESSAGE_BYTES)) > short + 1.0
    assert len(rig.driver.fed) == limits.GUEST_MESSAGES_AT_ONCE + 4, "what was read is heard all the same"


@pytest.mark.parametrize("what", ["unreadable", "not its own", "bulk header", "bulk payload"])
def test_whoever_breaks_a_rule_on_whatever_way_loses_its_link_and_stays_outside(rig: HearingRig, what: str) -> None:
    """A message that cannot be read, one in another's name, and both halves of what comes over a bulk stream."""
    rig.wrong = {"unreadable": CodecError("no message"), "not its own": RemoteProtocolError("signed by another")}.get(
        what
    )
    assert rig.kept_out(C) is None
    match what:
        case "bulk header":
            assert rig.neighbours.bulk_buffer(C, 1, b"", 1) is None
        case "bulk payload":
            rig.neighbours.bulk_received(C, 1, b"", None)
        case _:
            rig.neighbours.control_received(C, b"")
    assert rig.driver.closed == [C] and not rig.driver.fed
    told = rig.kept_out(C)
    assert told is not None and "broke the rules" in told.reason
    assert rig.driver.conduct.was_sent_away(C)
    rig.now_s += limits.BACK_OFF_FIRST_S
    assert rig.kept_out(C) is None


def test_of_what_it_did_the_history_gets_a_bounded_part(rig: HearingRig) -> None:
    """It may be words of its own."""
    rig.neighbours.broke_rules(C, "x" * (4 * REASON_MAX))
    (line,) = rig.driver.records
    assert (line.kind, line.cause) == ("refused", "x" * REASON_MAX)
    assert "not let in again for 1 s" in line.reason


def test_what_was_on_its_way_over_a_link_that_is_closed_already_is_no_second_breach(rig: HearingRig) -> None:
    rig.neighbours.broke_rules(C, "one")
    rig.linked.remove(C)
    rig.neighbours.broke_rules(C, "two")
    assert [line.cause for line in rig.driver.records] == ["one"]
    rig.now_s += limits.BACK_OFF_FIRST_S
    assert rig.kept_out(C) is None, "it waits as for one"


def test_only_a_site_of_the_run_is_believed_on_the_host_at_which_it_listens(rig: HearingRig) -> None:
    """A guest that is on the list is dialled where it calls from, no other host in this daemon's network."""
    asked = rig.neighbours
    assert asked.may_name_hosts(B) and not asked.may_name_hosts(C)
    assert asked.both_in_run(B) and not asked.both_in_run(C)
    assert (asked.newest_start(B), asked.newest_start(C)) == (1, 0)


# -- a dial of this site's own


class Dialling:
    """What a driver has that a dial needs."""

    def __init__(self, rig: HearingRig, *, fails: Exception | None = None) -> None:
        self.conduct, self.names, self.transport = rig.driver.conduct, rig.driver.names, self
        self.fails, self.dialled = fails, 0
        self.fed: list[Any] = []
        self._dial_failures: dict[SiteId, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def dial(self, site: SiteId, address: str, *, timeout_s: float) -> None:
        self.dialled += 1
        if self.fails:
            raise self.fails

    def feed(self, event: Any) -> None:
        self.fed.append(event)

    async def to(self, site: SiteId) -> None:
        await Driver._dial(cast(Driver, self), site, "c:1", 1.0)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        Driver._has_ended(cast(Driver, self), task)


async def test_links_that_this_site_dials_count_as_those_that_it_lets_in(rig: HearingRig) -> None:
    """Who ends each of them at once would be dialled again and again, and each is an event in the history."""
    dialling = Dialling(rig)
    for _ in range(limits.GUEST_LINKS_AT_ONCE + 3):
        await dialling.to(C)
    assert dialling.dialled == limits.GUEST_LINKS_AT_ONCE
    assert [type(one) for one in dialling.fed] == [DialFailed] * 3 and "come and go" in dialling.fed[0].reason


async def test_who_has_to_stay_outside_is_not_dialled_either(rig: HearingRig) -> None:
    dialling = Dialling(rig)
    rig.neighbours.broke_rules(C, "one")
    await dialling.to(C)
    (told,) = dialling.fed
    assert "broke the rules" in told.reason
    rig.now_s += limits.BACK_OFF_FIRST_S
    await dialling.to(C)
    assert dialling.dialled == 1 and dialling.fed == [told], "not the first time"


async def test_of_sites_that_cannot_be_dialled_a_bounded_number_is_remembered(rig: HearingRig) -> None:
    """Each is told of once a reason."""
    dialling = Dialling(rig, fails=DialError("refused"))
    sites = [SiteId(f"{number:032x}") for number in range(SITES_MAX + 3)]
    for site in sites:
        await dialling.to(site)
    assert list(dialling._dial_failures) == sites[3:]


async def test_a_defect_costs_one_dial_and_not_the_link(rig: HearingRig, caplog: pytest.LogCaptureFixture) -> None:
    """The machine dials again only after it has heard what became of the dial before."""
    dialling = Dialling(rig, fails=RuntimeError("no such thing"))
    Driver.spawn(cast(Driver, dialling), lambda: dialling.to(C), "dial c")
    await asyncio.wait(dialling._tasks)
    await asyncio.sleep(0)  # who looks at its end is called after this
    (told,) = dialling.fed
    assert type(told) is DialFailed and "no such thing" in told.reason
    assert "dial c" in caplog.text and "RuntimeError" in caplog.text
