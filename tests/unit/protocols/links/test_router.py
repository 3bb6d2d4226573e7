"""Messages find their site, once, over whatever ways are left; what nobody can deliver is counted and dropped."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import A, B, Bench, C, D, E, link, roster_of, router_of

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import SendEnvelope
from chaos_protocols.links.link_state import (
    REPLAY_WINDOW,
    ROUTES_CACHED_MAX,
    STRANGERS_MAX,
    LinkStateTable,
    ReplayGuard,
)
from chaos_protocols.links.naming import RunNaming
from chaos_protocols.links.router import Router
from chaos_protocols.links.site_versions import SiteVersions
from chaos_protocols.names import CONTROL_FRAME_BYTES_MAX, SiteId
from chaos_protocols.wire.control import (
    EVERYBODY,
    HOPS_MAX,
    CodecError,
    Envelope,
    Goodbye,
    LinkStateAdvertisement,
    Message,
    decode_envelope,
    encode_envelope,
)
from chaos_protocols.wire.versions import SPOKEN

WORD = Goodbye(reason="word")
REPORT = LinkStateAdvertisement(neighbour=B, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
LINE = roster_of(A, B, C, D, links=(link(A, B), link(B, C), link(C, D)))
"""a - b - c - d"""


def router(site: SiteId = B) -> Router:
    return router_of(site)


def envelope(source: SiteId, destination: SiteId, message: Message = WORD, **changes: object) -> Envelope:
    bench = Bench(destination)
    made = bench.envelope(source, message)
    return msgspec.structs.replace(made, destination=destination, **changes)


def report(source: SiteId, neighbour: SiteId, *, up: bool = True, sequence: int = 1, incarnation: int = 1) -> Envelope:
    said = LinkStateAdvertisement(neighbour=neighbour, incarnation=1, up=up, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    return envelope(source, EVERYBODY, said, sequence=sequence, incarnation=incarnation)


def hops(effects: list[object]) -> list[SiteId]:
    return [effect.neighbour for effect in effects if isinstance(effect, SendEnvelope)]


def receive(one: Router, neighbour: SiteId, what: Envelope, up: tuple[SiteId, ...], roster: Roster = LINE) -> object:
    return one.receive(neighbour, what, roster=roster, own_up=up)


def test_a_message_goes_straight_to_a_neighbour_and_over_one_to_others() -> None:
    one = router(A)
    assert hops(one.send(B, WORD, roster=LINE, own_up=(B,), event_id="")) == [B]  # type: ignore[arg-type]
    assert hops(one.send(D, WORD, roster=LINE, own_up=(B,), event_id="")) == [B]  # type: ignore[arg-type]


def test_only_what_others_hand_on_carries_the_key_that_its_signature_is_checked_with() -> None:
    """A neighbour's own words are authenticated by its link (spec 4.3)."""
    one = Router(A, b"k" * 32, 1, RunNaming(SiteVersions(A, 1, SPOKEN)))
    said = [
        *one.send(B, WORD, roster=LINE, own_up=(B,), event_id=""),
        *one.send(D, WORD, roster=LINE, own_up=(B,), event_id=""),
        *one.flood(REPORT, roster=LINE, own_up=(B,), event_id=""),
    ]
    assert [len(one.envelope.public_key) for one in said if isinstance(one, SendEnvelope)] == [0, 32, 32]


def test_a_message_without_a_way_is_counted_and_dropped() -> None:
    one = router(A)
    assert one.send(E, WORD, roster=LINE, own_up=(B,), event_id="") == [] and one.undeliverable == 1


def test_a_message_for_another_site_is_passed_on_with_one_more_hop() -> None:
    ours, out = router().receive(A, envelope(A, C), roster=LINE, own_up=(A, C))
    assert ours is None
    (sent,) = out
    assert isinstance(sent, SendEnvelope) and sent.neighbour == C and sent.envelope.hops == 1
    _, out = router().receive(A, envelope(A, D), roster=LINE, own_up=(A, C))
    assert hops(out) == [C]  # type: ignore[arg-type]


def test_a_message_is_not_passed_back_to_where_it_came_from() -> None:
    one = router()
    assert receive(one, C, envelope(D, A), (C,)) == (None, []) and one.undeliverable == 1


def test_a_message_that_has_hopped_too_often_is_dropped() -> None:
    one = router()
    assert receive(one, A, envelope(A, C, hops=HOPS_MAX), (A, C)) == (None, []) and one.undeliverable == 1
    ours, out = one.receive(A, msgspec.structs.replace(report(D, C), hops=HOPS_MAX), roster=LINE, own_up=(A, C))
    assert ours is not None and out == [], "a report is read, but travels no further"


def test_what_claims_to_be_of_this_very_site_is_dropped() -> None:
    assert receive(router(), A, envelope(B, B), (A,)) == (None, [])


def test_only_link_reports_are_flooded() -> None:
    assert receive(router(), A, envelope(A, EVERYBODY), (A, C)) == (None, [])


def test_a_report_is_flooded_to_everybody_but_its_author_and_its_bearer_and_only_once() -> None:
    one = router()
    ours, out = one.receive(A, report(D, C), roster=LINE, own_up=(A, C, D))
    assert ours is not None and hops(out) == [C]  # type: ignore[arg-type]
    assert receive(one, C, report(D, C), (A, C, D)) == (None, [])


def test_a_new_link_begins_with_all_reports_but_those_of_its_other_end() -> None:
    one = router()
    for source in (A, C, D):
        one.overlay.learn(report(source, B))
    assert len(one.introduce(A)) == 2


def test_a_message_is_taken_once_and_none_of_an_older_incarnation() -> None:
    one = router()
    first, _ = one.receive(A, envelope(A, B, sequence=5), roster=LINE, own_up=(A,))
    again, _ = one.receive(A, envelope(A, B, sequence=5), roster=LINE, own_up=(A,))
    newer, _ = one.receive(A, envelope(A, B, sequence=1, incarnation=2), roster=LINE, own_up=(A,))
    older, _ = one.receive(A, envelope(A, B, sequence=6), roster=LINE, own_up=(A,))
    assert (first is None, again is None, newer is None, older is None) == (False, True, False, True)


def test_what_is_older_than_the_window_is_taken_for_a_replay() -> None:
    guard = ReplayGuard()
    assert guard.is_new(envelope(A, B, sequence=2 * REPLAY_WINDOW))
    assert not guard.is_new(envelope(A, B, sequence=REPLAY_WINDOW))
    assert guard.is_new(envelope(A, B, sequence=REPLAY_WINDOW + 1))


def test_what_others_hand_on_in_a_neighbours_name_never_shuts_out_what_it_says_over_its_own_link() -> None:
    """A member that is in two runs brings what the neighbour said in the other one, with a number that it never reaches
    here; nor does a word of a former start come after one of this."""
    one = router(B)
    first, second = envelope(A, B, sequence=1, incarnation=3), envelope(A, B, sequence=2, incarnation=3)
    assert receive(one, A, first, (A, C)) == (first, [])
    receive(one, C, envelope(A, B, sequence=9, incarnation=1 << 40), (A, C))
    assert receive(one, A, second, (A, C)) == (second, [])
    assert receive(one, A, second, (A, C)) == (None, [])
    one.forget(A)
    assert receive(one, A, first, (A, C)) == (first, [])
    assert receive(one, C, envelope(A, B, sequence=3, incarnation=2), (A, C)) == (None, [])


def test_the_guard_remembers_a_bounded_number_of_messages_and_sources() -> None:
    guard = ReplayGuard()
    for sequence in range(1, 5 * REPLAY_WINDOW):
        assert guard.is_new(envelope(A, B, sequence=sequence))
    assert len(guard.heard[A].seen) <= 2 * REPLAY_WINDOW + 1


def test_strangers_neither_fill_the_guard_nor_keep_a_new_site_out() -> None:
    guard = ReplayGuard()
    assert guard.is_new(envelope(A, B), insider=True)
    for number in range(3 * STRANGERS_MAX):
        stranger = msgspec.structs.replace(envelope(D, B), source=SiteId(f"{number:032x}"))
        assert guard.is_new(stranger, insider=False)
    assert guard.is_new(envelope(D, B), insider=False)
    assert not guard.is_new(envelope(D, B), insider=False)
    assert not guard.is_new(envelope(A, B), insider=True)
    assert len(guard.heard) <= STRANGERS_MAX + 1


def test_reports_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos_protocols.links.link_state.REPORTS_MAX", 2)
    overlay = LinkStateTable(B)
    assert overlay.learn(report(A, B)) and overlay.learn(report(C, B))
    assert not overlay.learn(report(D, B))
    assert overlay.learn(report(C, B, up=False, sequence=2)), "news of a known link is always taken"
    assert overlay.report(D, B) is None


def test_a_report_of_a_former_life_keeps_no_link_up() -> None:
    overlay = LinkStateTable(B)
    overlay.learn(report(C, D))
    assert overlay.is_up(C, D)
    overlay.learn(report(C, A, incarnation=2))
    assert not overlay.is_up(C, D)


def test_an_envelope_that_is_too_long_is_refused() -> None:
    right = envelope(A, B)
    with pytest.raises(CodecError, match="exceeds the limit"):
        decode_envelope(bytes(CONTROL_FRAME_BYTES_MAX + 1))
    with pytest.raises(CodecError, match="exceeds the limit"):
        encode_envelope(msgspec.structs.replace(right, signature=bytes(CONTROL_FRAME_BYTES_MAX)))
    with pytest.raises(CodecError, match="not an envelope"):
        decode_envelope(b"\x80")


def test_routes_that_are_kept_are_bounded_in_number() -> None:
    overlay, roster = LinkStateTable(A), roster_of(A, B, C)
    for number in range(ROUTES_CACHED_MAX + 5):
        overlay.next_hops(roster, (B,) * (number + 1))
    assert len(overlay._hops) <= ROUTES_CACHED_MAX
