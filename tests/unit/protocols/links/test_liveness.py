"""Links come and go: when one is dialled, redialled, called silent, and when nobody is to blame."""

from __future__ import annotations

from chaos_protocols.effects import CloseLink, Dial
from chaos_protocols.events import ConnectionProgress as Progress
from chaos_protocols.links.liveness import BEATS_REMEMBERED, LinkCameUp, LinkPhase, LinkRenewed, LinkTable, LinkWentDown
from chaos_protocols.links.silence import (
    BEHIND_BULK_FACTOR,
    GAP_KEPT,
    REDIALLED_AGAIN_FACTOR,
    SILENCE_FACTOR_MAX,
    STALL_FACTOR,
    LinkWatch,
)
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.control import Heartbeat

A, B = SiteId("a" * 32), SiteId("b" * 32)
SETTINGS = SiteSettings(failure_timeout_s=1.0)


def table() -> LinkTable:
    return LinkTable(SETTINGS, now_s=0.0)


def linked(*, address: str = "b:1") -> LinkTable:
    links = table()
    links.link_up(B, 1, address, now_s=0.0)
    links.notices.clear()
    return links


def beat(sequence: int, echo: int, delay_s: float = 0.0, late_s: float = 0.0) -> Heartbeat:
    return Heartbeat(
        sequence=sequence, echo_sequence=echo, echo_delay_s=delay_s, round=0, phase="compute", epoch=1,
        scheduler=None, knows_you=True, late_s=late_s,
    )  # fmt: skip


def tick(links: LinkTable, *times_s: float) -> list[object]:
    return [effect for now_s in times_s for effect in links.tick(now_s=now_s)]


def on_time(links: LinkTable, until_s: float, *, heard: tuple[SiteId, ...] = ()) -> list[object]:
    """Every tick that is asked for, when it is asked for; up to that time."""
    found: list[object] = []
    while links.deadline_s <= until_s:
        now_s = links.deadline_s
        for site in heard:
            links.heard(site, now_s=now_s)
        found += links.tick(now_s=now_s)
    return found


def bulk(stream: int = 0, *, received: bool = False, acknowledged: bool = False, waiting: bool = False) -> Progress:
    return Progress(stream=stream, received=received, acknowledged=acknowledged, waiting=waiting)


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
    on_time(links, 0.49)
    assert not went_down(links)
    on_time(links, 0.51)
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
    assert on_time(links, 1.0) == []
    (closed,) = on_time(links, 1.25)
    assert closed == CloseLink(site=B, reason="silent for 1.25 s")
    (down,) = went_down(links)
    assert down.reason == "silent for 1.25 s"


def test_a_neighbour_that_speaks_but_does_not_hear_us_is_lost_too() -> None:
    links = linked()
    (closed,) = on_time(links, 1.25, heard=(B,))
    assert isinstance(closed, CloseLink) and closed.reason == "does not hear us for 1.25 s"


def test_an_echo_that_names_no_newer_beat_is_no_sign_that_we_are_heard() -> None:
    links = linked()
    first = links.next_beat(now_s=0.0)
    found: list[object] = []
    for number in range(6):
        now_s = 0.25 * number
        links.heartbeat_received(B, beat(number + 1, first, now_s), now_s=now_s)
        found += links.tick(now_s=now_s)
    assert [one.reason for one in found if isinstance(one, CloseLink)] == ["does not hear us for 1.25 s"]


def test_bulk_that_moves_excuses_late_heartbeats_for_a_bounded_time() -> None:
    links = linked()
    allowed_s = BEHIND_BULK_FACTOR * SETTINGS.failure_timeout_s
    found: list[object] = []
    while not found and links.deadline_s < 60.0:
        now_s = links.deadline_s
        links.progressed(B, (bulk(received=True),), now_s=now_s)
        found = links.tick(now_s=now_s)
    why = f"its control connection is silent for {allowed_s + 0.25:.2f} s, though bulk bytes move"
    redial = Dial(site=B, address="b:1", timeout_s=SETTINGS.redial_timeout_s)
    assert found == [CloseLink(site=B, reason=why), redial], "the neighbour lives: the link is made anew at once"
    assert links.is_up(B) and not went_down(links)
    links.progressed(SiteId("c" * 32), (bulk(received=True),), now_s=2.0)
    links.heard(SiteId("c" * 32), now_s=2.0)
    assert list(links.neighbours) == [B], "who is no neighbour does not become one by speaking"


def test_bytes_that_the_system_of_a_stopped_daemon_acknowledges_do_not_excuse_its_silence() -> None:
    """A stopped process has a kernel that still takes what is sent to it (seeds 473 and 599 of the simulator)."""
    links = linked()
    found: list[object] = []
    while not found and links.deadline_s < 60.0:
        now_s = links.deadline_s
        links.progressed(B, (bulk(acknowledged=True, waiting=True),), now_s=now_s)
        found = links.tick(now_s=now_s)
    assert [one.reason for one in found if isinstance(one, CloseLink)] == ["silent for 1.25 s"]


def test_bytes_that_are_acknowledged_excuse_echoes_that_come_late() -> None:
    """Our own beats queue behind what we send."""
    links = linked()
    while links.deadline_s < BEHIND_BULK_FACTOR * SETTINGS.failure_timeout_s:
        now_s = links.deadline_s
        links.heard(B, now_s=now_s)
        links.progressed(B, (bulk(acknowledged=True, waiting=True),), now_s=now_s)
        assert links.tick(now_s=now_s) == []


def test_a_long_control_frame_that_arrives_slowly_is_a_sign_of_life() -> None:
    links = linked()
    moves = Progress(stream=None, received=True, acknowledged=True)
    while links.deadline_s < 10.0:
        links.progressed(B, (moves,), now_s=links.deadline_s)
        assert links.tick(now_s=links.deadline_s) == []


def test_bulk_that_nobody_acknowledges_is_a_dead_link_though_heartbeats_pass() -> None:
    links = linked()
    limit_s = STALL_FACTOR * SETTINGS.failure_timeout_s
    found: list[object] = []
    number = 0
    while not found and links.deadline_s < 60.0:
        now_s = links.deadline_s
        number += 1
        links.heartbeat_received(B, beat(number, links.next_beat(now_s=now_s)), now_s=now_s)
        links.progressed(B, (bulk(0, acknowledged=True, waiting=True), bulk(1, waiting=True)), now_s=now_s)
        found = links.tick(now_s=now_s)
    closed = found[0]
    assert isinstance(closed, CloseLink) and isinstance(found[1], Dial)
    assert closed.reason.startswith(f"bulk stream 1: sent bytes were not acknowledged for {limit_s + 0.25:.2f} s")
    assert "large packets" in closed.reason and "chaosd doctor" in closed.reason
    links.dial_failed(B, "timed out", now_s=now_s + 0.2)
    (down,) = went_down(links)
    assert down.reason == f"{closed.reason}; redial: timed out"


def stalls(links: LinkTable) -> list[object]:
    """Bulk waits from now on, until something is done about it."""
    found: list[object] = []
    while not found:
        now_s = links.deadline_s
        links.progressed(B, (Progress(stream=None, received=True, acknowledged=True), bulk(waiting=True)), now_s=now_s)
        found = links.tick(now_s=now_s)
    return found


def test_who_has_acknowledged_nothing_of_a_stream_for_longest_is_known() -> None:
    links, other = linked(), SiteId("c" * 32)
    links.link_up(other, 1, "", now_s=0.0)
    assert links.unacknowledged(0, now_s=0.5) == (None, 0.0)
    links.progressed(B, (bulk(waiting=True),), now_s=0.5)
    links.progressed(other, (bulk(waiting=True),), now_s=1.0)
    assert links.unacknowledged(0, now_s=1.5) == (B, 1.0)
    assert links.unacknowledged(1, now_s=1.5) == (None, 0.0), "another stream"
    links.progressed(B, (bulk(acknowledged=True, waiting=True),), now_s=1.6)
    assert links.unacknowledged(0, now_s=2.0) == (other, 1.0)


def test_a_link_that_stalls_again_soon_after_it_was_made_anew_is_down() -> None:
    links = linked()
    assert isinstance(stalls(links)[-1], Dial)
    links.link_up(B, 1, "", now_s=links.deadline_s)
    assert [type(one) for one in stalls(links)] == [CloseLink], "a path that cannot be used"
    (down,) = went_down(links)
    assert down.reason.startswith("bulk stream 0")
    links.link_up(B, 1, "", now_s=links.deadline_s + REDIALLED_AGAIN_FACTOR)
    assert isinstance(stalls(links)[-1], Dial), "long after, it has another chance"


def test_bulk_that_is_acknowledged_now_and_then_is_slow_and_not_dead() -> None:
    links = linked()
    for number in range(60):
        now_s = links.deadline_s
        links.heartbeat_received(B, beat(number, links.next_beat(now_s=now_s)), now_s=now_s)
        links.progressed(B, (bulk(1, acknowledged=number % 7 == 0, waiting=True),), now_s=now_s)
        assert links.tick(now_s=now_s) == []


def test_a_renewed_link_owes_nothing_of_what_its_former_connections_had_not_sent() -> None:
    links = linked()
    links.progressed(B, (bulk(1, waiting=True),), now_s=0.0)
    links.link_lost(B, 1, "reset", now_s=0.1)
    links.link_up(B, 1, "", now_s=0.2)
    assert not links.neighbours[B].watch.standing


def test_nobody_is_blamed_after_this_process_itself_stood_still() -> None:
    links = linked()
    tick(links, 0.25)
    assert tick(links, 60.0) == []
    assert links.is_up(B)
    assert on_time(links, 60.5) == []
    assert on_time(links, 61.25) != [], "but whoever stays silent after that is lost"


def test_the_time_that_a_site_without_a_processor_was_late_is_nobodys_silence() -> None:
    """Each tick comes 0.6 s late: of 3.4 s this site was there for 1 s only."""
    links = linked()
    for _ in range(5):
        assert tick(links, links.deadline_s + 0.6) == []
    assert abs(links.lateness_s - 0.6) < 1e-9
    late = links.deadline_s + 0.6
    assert tick(links, late) != [], "1.25 s of its own time have passed without a word"


def test_a_redial_is_given_the_time_that_this_site_was_late() -> None:
    links = linked()
    tick(links, 0.25)
    links.link_lost(B, 1, "end of file", now_s=0.3)
    assert tick(links, 5.0) == [] and links.is_up(B), "its answer may lie unread"
    links.dial_failed(B, "refused", now_s=5.01)
    assert not links.is_up(B)


def test_the_limit_of_silence_follows_the_gaps_of_a_link_within_a_range() -> None:
    links = linked()
    assert links.silence_limit_s(B) == links.silence_limit_s(SiteId("c" * 32)) == 1.0
    on_time(links, 0.9)
    links.heard(B, now_s=0.9)
    assert links.silence_limit_s(B) == 1.8, "twice the gap that was seen"
    number, now_s = 0, 0.9
    while links.silence_limit_s(B) > 1.0:
        number, now_s = number + 1, now_s + 0.25
        on_time(links, now_s)
        links.heartbeat_received(B, beat(number, 0), now_s=now_s)
    assert 1.8 * GAP_KEPT**number <= 1.0 < 1.8 * GAP_KEPT ** (number - 1), "it fades with the beats that come in time"
    seen = LinkWatch()
    seen.heard(now_s=60.0, late_s=0.0)
    assert seen.limit_s(1.0) == SILENCE_FACTOR_MAX, "never longer than that"


def test_a_gap_that_was_this_sites_own_lateness_makes_nobody_patient() -> None:
    links = linked()
    assert links.deadline_s == 0.0
    tick(links, 0.0)
    links.heard(B, now_s=5.0)
    tick(links, 5.0)
    assert links.silence_limit_s(B) == 1.0


def test_a_neighbour_that_says_that_it_is_late_is_waited_for() -> None:
    links = linked()
    links.heartbeat_received(B, beat(1, 0, late_s=0.5), now_s=0.1)
    assert links.silence_limit_s(B) == 1.5
    links.heartbeat_received(B, beat(2, 0, late_s=100.0), now_s=0.2)
    assert links.silence_limit_s(B) == SILENCE_FACTOR_MAX


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
