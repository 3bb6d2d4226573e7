"""Links while nobody trains: heartbeats alone keep them up, and a lost neighbour is dialled in time."""

from __future__ import annotations

from tests.unit.protocols.one_site import SETTINGS, B

from chaos_protocols.links.liveness import LinkTable
from chaos_protocols.wire.control import Heartbeat


def test_heartbeats_that_are_echoed_keep_a_link_up_and_without_their_echo_it_is_lost() -> None:
    for echoed in (True, False):
        links, now_s = LinkTable(SETTINGS, now_s=0.0), 0.0
        links.link_up(B, 1, "b:1", now_s=now_s)
        while now_s < 5 * SETTINGS.failure_timeout_s:
            now_s += SETTINGS.beat_s
            sequence = links.next_beat(now_s=now_s)
            beat = Heartbeat(
                sequence=sequence,
                echo_sequence=sequence if echoed else 0,
                echo_delay_s=0.0,
                round=0,
                phase="compute",
                epoch=1,
                scheduler=None,
                knows_you=True,
            )
            links.heartbeat_received(B, beat, now_s=now_s)
            links.tick(now_s=now_s)
        assert links.is_up(B) is echoed


def test_a_neighbour_is_dialled_again_when_its_pause_is_over_and_not_only_at_the_next_beat() -> None:
    links, now_s = LinkTable(SETTINGS, now_s=0.0), 0.0
    links.want(B, "b:1", now_s=now_s)
    links.dial_failed(B, "refused", now_s=0.3 * SETTINGS.beat_s)
    again_s = links.neighbours[B].retry_at_s
    while links.deadline_s < again_s:
        now_s = links.deadline_s
        assert links.tick(now_s=now_s) == []
    assert links.deadline_s == again_s > now_s
    assert len(links.tick(now_s=again_s)) == 1
