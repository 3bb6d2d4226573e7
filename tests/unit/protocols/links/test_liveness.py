"""Links come and go: when one is dialled, redialled, called silent, and when nobody is to blame."""

from __future__ import annotations

from chaos_protocols.effects import CloseLink, Dial
from chaos_protocols.links.liveness import BEATS_REMEMBERED, LinkCameUp, LinkPhase, LinkRenewed, LinkTable, LinkWentDown
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.control import Heartbeat

A, B = SiteId("a" * 32), SiteId("b" * 32)
SETTINGS = SiteSettings(failure_timeout_s=1.0)


def table() -> LinkTable:
    return LinkTable(A, SETTINGS, now_s=0.0)


def linked(*, address: str = "b:1") -> LinkTable:
    links = table()
    links.link_up(B, 1, address, now_s=0.0)
    links.notices.clear()
    return links


def beat(sequence: int, echo: int, delay_s: float = 0.0) -> Heartbeat:
    return Heartbeat(
        sequence=sequence, echo_sequence=echo, echo_delay_s=delay_s, round=0, phase="compute", epoch=1,
        scheduler=None, knows_you=True,
    )  # fmt: skip


def tick(links: LinkTable, *times_s: float) -> list[object]:
    return [effect for now_s in times_s for effect in links.tick(now_s=now_s)]


def went_down(links: LinkTable) -> list[LinkWentDown]:
    return [notice for notice in links.notices if isinstance(notice, LinkWentDown)]


def test_a_wanted_neighbour_is_dialled_at_once_and_again_after_the_pause() -> None:
    links = table()
    assert links.want(B, "b:1", now_s=0.0) == [Dial(site=B, address="b:1", timeout_s=SETTINGS.dial_timeout_s)]
    assert links.want(B, "b:1", now_s=0.1) == [], "a dial is under way"
    assert links.dial_failed(B, "refused", now_s=0.2) == []
    assert links.neighbours[B].failure == "refused" and not went_down(links), "it never was up"
    assert tick(links, 0.3, 0.6) == []
    assert tick(links, 0.7) == [Dial(site=B, address="b:1", timeout_s=SETTINGS.dial_timeout_s)]
    assert tick(links, 0.8) == [], "one dial at a time"


def test_a_neighbour_without_an_address_is_not_dialled() -> None:
    links = table()
    assert links.want(B, "", now_s=0.0) == []
    assert tick(links, 5.0) == []


def test_a_lost_connection_is_redialled_once_and_down_when_that_is_refused() -> None:
    links = linked()
    redial = links.link_lost(B, 1, "end of file", now_s=1.0)
    assert redial == [Dial(site=B, address="b:1", timeout_s=SETTINGS.redial_timeout_s)]
    assert links.is_up(B), "until the redial is answered nobody is told"
    assert links.dial_failed(B, "refused", now_s=1.1) == []
    (down,) = went_down(links)
    assert down.reason == "end of file; redial: refused" and not links.is_up(B)


def test_a_lost_connection_without_an_address_waits_for_the_neighbour_and_is_then_down() -> None:
    links = linked(address="")
    assert links.link_lost(B, 1, "end of file", now_s=0.1) == []
    tick(links, 0.2, 0.4)
    assert not went_down(links)
    tick(links, 0.51)
    (down,) = went_down(links)
    assert down.reason == "end of file; not redialled"


def test_a_connection_that_comes_back_in_time_is_renewed_and_nobody_is_told_of_a_loss() -> None:
    links = linked()
    links.link_lost(B, 1, "end of file", now_s=0.1)
    links.link_up(B, 1, "", now_s=0.2)
    assert links.notices == [LinkRenewed(site=B)] and links.neighbours[B].address == "b:1"


def test_a_connection_of_a_newer_daemon_ends_the_older_link() -> None:
    links = linked()
    links.link_up(B, 2, "b:1", now_s=0.2)
    assert links.notices == [
        LinkWentDown(site=B, incarnation=1, reason="its daemon was restarted"),
        LinkCameUp(site=B, incarnation=2),
    ]


def test_the_loss_of_an_older_incarnation_or_of_an_unknown_link_changes_nothing() -> None:
    links = linked()
    assert links.link_lost(B, 7, "late news", now_s=0.1) == []
    assert links.link_lost(SiteId("c" * 32), 1, "never known", now_s=0.1) == []
    assert links.is_up(B) and not links.notices


def test_the_failure_of_a_dial_that_is_not_under_way_changes_nothing() -> None:
    links = linked()
    assert links.dial_failed(B, "late", now_s=0.1) == []
    assert links.dial_failed(SiteId("c" * 32), "never known", now_s=0.1) == []
    assert links.is_up(B)


def test_a_neighbour_that_said_goodbye_is_not_redialled() -> None:
    links = linked()
    links.goodbye_received(B, "bye")
    links.goodbye_received(SiteId("c" * 32), "from nobody")
    assert links.link_lost(B, 1, "end of file", now_s=0.1) == []
    (down,) = went_down(links)
    assert down.reason == "goodbye: bye"


def test_silence_longer_than_the_failure_timeout_ends_a_link() -> None:
    links = linked()
    assert tick(links, 0.5, 1.0) == []
    (closed,) = tick(links, 1.1)
    assert closed == CloseLink(site=B, reason="silent for 1.10 s")
    (down,) = went_down(links)
    assert down.reason == "silent for 1.10 s"


def test_a_neighbour_that_speaks_but_does_not_hear_us_is_lost_too() -> None:
    links = linked()
    for now_s in (0.5, 1.0):
        tick(links, now_s)
        links.heard(B, now_s=now_s)
    (closed,) = tick(links, 1.3)
    assert isinstance(closed, CloseLink) and closed.reason == "does not hear us for 1.30 s"


def test_bulk_progress_counts_as_heard_in_both_directions() -> None:
    links = linked()
    for now_s in (0.5, 1.0, 1.5):
        assert tick(links, now_s) == []
        links.progressed(B, now_s=now_s)
    assert tick(links, 2.0) == []
    links.progressed(SiteId("c" * 32), now_s=2.0)
    links.heard(SiteId("c" * 32), now_s=2.0)
    assert list(links.neighbours) == [B], "who is no neighbour does not become one by speaking"


def test_nobody_is_blamed_after_this_process_itself_stood_still() -> None:
    links = linked()
    tick(links, 0.25)
    assert tick(links, 60.0) == []
    assert links.is_up(B)
    tick(links, 60.5, 61.0)
    assert tick(links, 61.1) != [], "but whoever stays silent after that is lost"


def test_the_round_trip_time_is_that_of_the_echo_without_the_delay_at_the_far_end() -> None:
    links = linked()
    first = links.next_beat(now_s=1.0)
    links.heartbeat_received(B, beat(1, first, 0.05), now_s=1.15)
    assert abs((links.neighbours[B].rtt_s or 0) - 0.1) < 1e-9
    second = links.next_beat(now_s=2.0)
    links.heartbeat_received(B, beat(2, second), now_s=2.2)
    assert abs((links.neighbours[B].rtt_s or 0) - 0.12) < 1e-9, "smoothed: a fifth of the new sample"


def test_an_echo_of_a_beat_that_was_never_sent_tells_nothing() -> None:
    links = linked()
    links.heartbeat_received(B, beat(1, 999), now_s=0.1)
    links.heartbeat_received(SiteId("c" * 32), beat(1, 0), now_s=0.1)
    assert links.neighbours[B].rtt_s is None and list(links.neighbours) == [B]


def test_send_times_of_so_many_beats_are_kept_and_only_for_live_links() -> None:
    links = linked()
    links.want(SiteId("c" * 32), "", now_s=0.0)
    for _ in range(3 * BEATS_REMEMBERED):
        links.next_beat(now_s=1.0)
    assert len(links.neighbours[B].sent_at_s) == BEATS_REMEMBERED
    assert not links.neighbours[SiteId("c" * 32)].sent_at_s


def test_a_link_that_is_not_wanted_any_more_is_closed_without_a_notice() -> None:
    links = linked()
    assert links.unwant(B, "removed") == [CloseLink(site=B, reason="removed")]
    assert not links.notices and not links.neighbours
    assert links.unwant(B, "removed") == []


def test_a_forgotten_neighbour_stays_while_it_is_up_and_is_not_dialled_again() -> None:
    links = table()
    links.want(B, "b:1", now_s=0.0)
    links.link_up(B, 1, "b:1", now_s=0.1)
    links.forget(B)
    links.forget(SiteId("c" * 32))
    assert links.is_up(B)
    links.link_lost(B, 1, "end of file", now_s=0.2)
    links.dial_failed(B, "refused", now_s=0.3)
    assert links.neighbours[B].phase is LinkPhase.DOWN
    assert tick(links, 0.5, 1.0, 1.5) == []


def test_a_tick_before_the_beat_is_due_asks_for_none() -> None:
    links = table()
    tick(links, 0.0)
    links.notices.clear()
    tick(links, SETTINGS.beat_s / 2)
    assert not links.notices and links.deadline_s == SETTINGS.beat_s
