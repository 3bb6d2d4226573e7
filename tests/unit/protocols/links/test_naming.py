"""A word that others hand on counts in the run that it was said in, and in no other (spec 4.19, 4.20)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    A,
    B,
    Bench,
    C,
    D,
    heartbeat,
    link,
    mesh,
    record,
    roster_of,
    sent,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import SetRules, decode_command, encode_command, version_needed
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import SendEnvelope
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.voters import rules_due
from chaos_protocols.wire.control import (
    Envelope,
    JoinAnswer,
    JoinRequest,
    LinkStateAdvertisement,
    RoundStatusQuery,
    RoundStatusReply,
    decode_envelope,
    encode_envelope,
    signed_bytes,
)
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.versions import (
    CHECKS_SINCE,
    NAMES_SINCE,
    NEWEST,
    PROOFS_SINCE,
    SPOKEN,
    STARTS_SINCE,
    Versions,
)

RUN, OTHER = "ab" * 16, "cd" * 16
FORMER = Versions(oldest=2, newest=NAMES_SINCE - 1)
LINE = (link(A, B), link(B, C), link(C, D))
"""a - b - c - d"""


def line(rules: int = NAMES_SINCE, **changes: Any) -> Roster:
    """A round is in doubt there: who is asked how far it is answers."""
    known = tuple(record(site, versions=SPOKEN) for site in (A, B, C, D))
    return msgspec.structs.replace(
        roster_of(A, B, C, D, links=LINE), run_id=RUN, rules=rules, needs=rules, sites=known, resolving=True, **changes
    )


def at_c(rules: int = NAMES_SINCE) -> Bench:
    return Bench(C, line(rules), voters=(A, B, C)).up(B, D)


def schedules() -> Bench:
    """Site C, which alone has a vote."""
    bench = Bench(C, line(), voters=(C,)).up(B, D)
    bench.wait(0.1)
    assert bench.machine.scheduler.leading
    return bench


def beat(rules: int, run: str = RUN) -> Any:
    return msgspec.structs.replace(heartbeat(), run_id=run, rules=rules)


def report(source: SiteId, neighbour: SiteId, versions: Versions | None = SPOKEN) -> LinkStateAdvertisement:
    return LinkStateAdvertisement(
        neighbour=neighbour, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="", versions=versions
    )


def request(versions: Versions) -> JoinRequest:
    return JoinRequest(
        name="x", address="", public_key=b"", incarnation=1, neighbours=(B,), model=MODEL, worker_round=0,
        versions=versions,
    )  # fmt: skip


def brought(bench: Bench, source: SiteId, message: Any, *, by: SiteId, run: str = "") -> list[Any]:
    """A word of `source` comes by way of a neighbour."""
    envelope = msgspec.structs.replace(bench.envelope(source, message), run=run)
    return bench.handle(events.EnvelopeReceived(neighbour=by, envelope=envelope))


def envelopes(out: list[Any], kind: type) -> list[tuple[SiteId, Envelope]]:
    """Those with such a message, each with the neighbour that it goes to."""
    return [
        (one.neighbour, one.envelope)
        for one in out
        if isinstance(one, SendEnvelope) and isinstance(one.envelope.message, kind)
    ]


# -- what is signed


def test_the_signature_covers_the_run_and_a_word_without_one_is_signed_as_ever() -> None:
    plain = Bench(B).envelope(A, RoundStatusQuery(epoch=1))
    named, other = (msgspec.structs.replace(plain, run=run) for run in (RUN, OTHER))
    assert len({signed_bytes(one) for one in (plain, named, other)}) == 3
    assert decode_envelope(encode_envelope(named)) == named and decode_envelope(encode_envelope(plain)) == plain
    assert b"run" not in encode_envelope(plain), "a release before would take it for another word"


def test_what_was_signed_with_the_run_is_handed_on_with_it() -> None:
    bench = at_c()
    word = msgspec.structs.replace(bench.envelope(A, RoundStatusQuery(epoch=1), destination=D), run=RUN)
    ((_, passed),) = envelopes(bench.handle(events.EnvelopeReceived(neighbour=B, envelope=word)), RoundStatusQuery)
    assert passed.hops == 1 and signed_bytes(passed) == signed_bytes(word)


# -- what is taken


@pytest.mark.parametrize(("run", "taken"), [(RUN, True), (OTHER, False), ("", False)])
def test_where_it_was_agreed_only_words_of_this_run_count(run: str, taken: bool) -> None:
    bench = at_c()
    found = brought(bench, A, RoundStatusQuery(epoch=EPOCH), by=B, run=run)
    assert bool(sent(found, RoundStatusReply)) is taken
    assert bench.machine.network.router.foreign == (not taken)


@pytest.mark.parametrize(("run", "taken"), [(RUN, True), (OTHER, False), ("", True)])
def test_before_that_a_word_may_leave_the_run_out_but_name_no_other(run: str, taken: bool) -> None:
    found = brought(at_c(PROOFS_SINCE), A, RoundStatusQuery(epoch=EPOCH), by=B, run=run)
    assert bool(sent(found, RoundStatusReply)) is taken


def test_a_neighbours_own_word_needs_none() -> None:
    """Its link is of this run: the handshake has seen to that."""
    assert sent(brought(at_c(), B, RoundStatusQuery(epoch=EPOCH), by=B), RoundStatusReply)


def test_a_word_of_another_run_leaves_no_trace() -> None:
    """With a start and a number far above: what the site itself says afterwards still counts."""
    bench = at_c()
    before = dict(bench.machine.network.incarnations)
    far = msgspec.structs.replace(bench.envelope(A, RoundStatusQuery(epoch=EPOCH), 99), sequence=1 << 40)
    assert not bench.handle(events.EnvelopeReceived(neighbour=B, envelope=far))
    assert bench.machine.network.incarnations == before
    assert sent(brought(bench, A, RoundStatusQuery(epoch=EPOCH), by=B, run=RUN), RoundStatusReply)


@pytest.mark.parametrize("run", ["", OTHER])
def test_a_report_of_another_run_is_neither_believed_nor_passed_on(run: str) -> None:
    bench = at_c()
    assert not envelopes(brought(bench, A, report(A, B), by=B, run=run), LinkStateAdvertisement)
    assert bench.machine.network.router.overlay.report(A, B) is None
    assert envelopes(brought(bench, A, report(A, B), by=B, run=RUN), LinkStateAdvertisement)


# -- what is said


@pytest.mark.parametrize(("rules", "run"), [(NAMES_SINCE, RUN), (PROOFS_SINCE, "")])
def test_words_that_are_handed_on_name_the_run_once_it_was_agreed(rules: int, run: str) -> None:
    bench = at_c(rules)
    bench.machine.tell(A, RoundStatusQuery(epoch=EPOCH))
    bench.machine.tell(B, RoundStatusQuery(epoch=EPOCH))
    found = dict(envelopes(bench.handle(events.TimerFired()), RoundStatusQuery))
    told = [(one.destination, one.run) for one in found.values()]
    assert told in ([(B, "")], [(A, run)]) or set(told) == {(A, run), (B, "")}


def test_a_site_that_agrees_says_again_what_it_has_said_of_its_links() -> None:
    """Who has agreed before did not take it, and it is said once only."""
    bench = at_c(PROOFS_SINCE)
    assert {one.run for _, one in envelopes(bench.out, LinkStateAdvertisement)} == {""}
    bench.taken()
    bench.machine._install(line(), None)
    again = envelopes(bench.handle(events.LinkProgressed(site=B, connections=())), LinkStateAdvertisement)
    own = {(to, one.message.neighbour, one.run) for to, one in again if one.source == C}  # type: ignore[union-attr]
    assert own == {(to, about, RUN) for to in (B, D) for about in (B, D)}


def test_what_was_noted_holds_after_a_restart() -> None:
    """The journal may not reach to the entry; the note does."""
    bench = Bench(C, line(0), voters=(A, B, C), incarnation=2, reached=Reached(rules=NAMES_SINCE)).up(B, D)
    assert {one.run for _, one in envelopes(bench.out, LinkStateAdvertisement)} == {RUN}
    assert not sent(brought(bench, A, RoundStatusQuery(epoch=EPOCH), by=B), RoundStatusReply)


# -- told by neighbours


def test_a_site_that_was_away_names_the_run_when_a_neighbour_tells_that_it_was_agreed() -> None:
    bench = at_c(PROOFS_SINCE)
    brought(bench, B, report(B, A), by=B)
    brought(bench, B, report(B, C), by=B)
    assert not bench.machine.network.naming.named
    bench.hear(B, beat(NAMES_SINCE))
    naming = bench.machine.network.naming
    assert naming.named and not naming.required, "one neighbour's word makes nobody deaf"


def test_one_neighbour_cannot_make_a_site_say_what_others_would_take_for_forged() -> None:
    bench = at_c(PROOFS_SINCE)
    brought(bench, B, report(B, A, FORMER), by=B)
    bench.hear(B, beat(NAMES_SINCE))
    assert not bench.machine.network.naming.named, "a site of the run does not read it yet"


def test_a_site_that_was_away_and_knows_no_neighbour_any_more_sees_it_from_a_word_of_one_that_it_knows() -> None:
    """The newcomer beside it hands on what the scheduler says; its own answer has to name the run."""
    newcomer = SiteId("e" * 32)
    bench = Bench(C, line(PROOFS_SINCE), voters=(A, B, C)).up(newcomer)
    brought(bench, newcomer, report(newcomer, A), by=newcomer)
    bench.hear(newcomer, beat(NAMES_SINCE))
    assert not bench.machine.network.naming.named
    brought(bench, A, RoundStatusQuery(epoch=EPOCH), by=newcomer, run=RUN)
    assert bench.machine.network.naming.named


def test_a_site_outside_its_roster_names_the_run_that_any_neighbour_tells_it_of() -> None:
    """It was removed, and all that it knew have gone: it asks to join by way of one that it does not know."""
    newcomer = SiteId("e" * 32)
    bench = Bench(D, msgspec.structs.replace(roster_of(A, B), run_id=RUN), voters=(A, B)).up(newcomer)
    bench.hear(newcomer, beat(NAMES_SINCE, run=RUN))
    naming = bench.machine.network.naming
    assert naming.named and not naming.required


def test_a_newcomer_goes_on_naming_the_run_with_its_first_roster_whoever_else_was_said_to_speak_less() -> None:
    """It is given the roster of the run's beginning, and the log from there on if its answers arrive. That a site which
    came later was once of a former release it has heard of a neighbour, and of its next start nothing that counts."""
    later = SiteId("e" * 32)
    bench = Bench(D, msgspec.structs.replace(roster_of(A, B), run_id=RUN), voters=(A, B)).up(A)
    brought(bench, A, report(A, later, FORMER), by=A)
    assert bench.machine.network.versions.lacks(later, NAMES_SINCE) and later in bench.machine.network.reachable()
    bench.hear(A, beat(NAMES_SINCE))
    assert bench.machine.network.naming.named
    brought(bench, A, report(A, B, FORMER), by=A)
    bench.hear(A, beat(NAMES_SINCE))
    assert not bench.machine.network.naming.named, "one of its roster does not read it"


def test_nobody_outside_the_run_tells_a_site_of_it_what_was_agreed() -> None:
    bench = Bench(C, line(PROOFS_SINCE), voters=(A, B, C)).up(B, SiteId("e" * 32))
    brought(bench, B, report(B, A), by=B)
    bench.hear(SiteId("e" * 32), beat(NAMES_SINCE))
    assert not bench.machine.network.naming.named


def test_a_newcomer_names_the_run_that_its_peers_tell_of_and_takes_no_other_words() -> None:
    bench = Bench(D, peers=(B, C)).up(B, C)
    bench.hear(B, beat(PROOFS_SINCE))
    assert not bench.machine.network.naming.named
    bench.hear(C, beat(NAMES_SINCE))
    naming = bench.machine.network.naming
    assert (naming.run, naming.named, naming.required) == (RUN, True, True)
    bench.hear(B, beat(NAMES_SINCE, run=OTHER))
    assert (naming.run, naming.named, naming.required) == ("", False, False), "it hears of two runs, and is in neither"


def test_a_newcomer_names_the_run_that_its_peer_names_which_was_away_when_that_was_agreed() -> None:
    """The peer asks to join itself, in words that name the run; nobody else is linked with the newcomer."""
    bench = Bench(D, peers=(C,)).up(C)
    bench.hear(C, beat(PROOFS_SINCE))
    assert not bench.machine.network.naming.named
    brought(bench, C, report(C, B), by=C, run=RUN)
    naming = bench.machine.network.naming
    assert (naming.run, naming.named, naming.required) == (RUN, True, False)
    bench.hear(C, beat(PROOFS_SINCE, run=OTHER))
    assert not naming.named, "it hears of another run"


def test_rules_of_no_run_make_a_newcomer_demand_nothing() -> None:
    bench = Bench(D, peers=(B, C)).up(B, C)
    bench.hear(B, beat(NAMES_SINCE, run=""))
    naming = bench.machine.network.naming
    assert (naming.run, naming.named, naming.required) == ("", False, False)


def test_every_beat_tells_what_was_agreed() -> None:
    for rules in (0, PROOFS_SINCE, NAMES_SINCE):
        bench = at_c(rules)
        assert {one.rules for _, one in sent(bench.wait(1.0), type(beat(0)))} == {rules}


# -- institutions upgrade one after the other


def test_a_neighbour_of_the_former_release_is_sent_no_word_that_it_would_take_for_forged() -> None:
    guest = SiteId("e" * 32)
    bench = at_c()
    bench.handle(events.LinkUp(site=guest, incarnation=1, address="", versions=FORMER))
    bench.taken()
    found = brought(bench, A, report(A, B), by=B, run=RUN)
    assert {to for to, _ in envelopes(found, LinkStateAdvertisement)} == {D}
    said = [one for to, one in envelopes(bench.out, LinkStateAdvertisement) if to == guest]
    assert not [one for one in said if one.run]


def test_what_a_third_site_reports_of_a_neighbour_does_not_outweigh_its_handshake() -> None:
    """Be it of the start that was met, or of one that never was (seed 101, 7 sites)."""
    guest = SiteId("e" * 32)
    for start in (1, 2):
        bench = at_c()
        bench.handle(events.LinkUp(site=guest, incarnation=1, address="", versions=FORMER))
        lie = msgspec.structs.replace(report(B, guest), incarnation=start)
        brought(bench, B, lie, by=B, run=RUN)
        bench.taken()
        found = brought(bench, A, report(A, B), by=B, run=RUN)
        assert {to for to, _ in envelopes(found, LinkStateAdvertisement)} == {D}


def test_who_asks_to_join_with_the_former_release_hears_why_not() -> None:
    """Over a neighbour, which does not read the run's name either; and nothing else follows from what it said."""
    guest = SiteId("e" * 32)
    bench = schedules()
    brought(bench, B, report(B, guest, FORMER), by=B, run="")
    before = bench.machine.network.router._guard.incarnations()
    found = brought(bench, guest, request(FORMER), by=B)
    ((_, answer),) = envelopes(found, JoinAnswer)
    assert isinstance(answer.message, JoinAnswer) and answer.message.final and not answer.run
    assert bench.machine.network.router._guard.incarnations() == before


def test_who_asks_after_an_upgrade_is_answered_in_words_that_it_takes() -> None:
    """All that this site was told before is of its former release (seed 2104, 6 sites)."""
    guest = SiteId("e" * 32)
    bench = schedules()
    brought(bench, B, report(B, guest, FORMER), by=B, run=RUN)
    upgraded = msgspec.structs.replace(request(SPOKEN), incarnation=2)
    ((_, answer),) = envelopes(brought(bench, guest, upgraded, by=B, run=RUN), JoinAnswer)
    assert answer.run == RUN


def test_a_site_that_can_name_the_run_is_not_refused_for_what_it_asked_of_another_one() -> None:
    """It may be asking this run, too, and be sent away by an answer to the other request (seed 1172, 4 sites)."""
    guest = SiteId("e" * 32)
    for newest in (NAMES_SINCE, NEWEST):
        bench = schedules()
        brought(bench, B, report(B, guest, Versions(oldest=2, newest=newest)), by=B)
        assert not sent(brought(bench, guest, request(FORMER), by=B), JoinAnswer)


def test_a_site_of_the_run_that_asks_in_words_of_another_run_is_not_heard() -> None:
    bench = schedules()
    assert not sent(brought(bench, A, request(FORMER), by=B), JoinAnswer)
    assert not sent(brought(bench, SiteId("e" * 32), request(SPOKEN), by=B), JoinAnswer)


# -- how it is agreed


@pytest.mark.parametrize(
    ("newest", "rules", "run", "due"),
    [
        (NEWEST, 0, RUN, CHECKS_SINCE),
        (NEWEST, PROOFS_SINCE, RUN, CHECKS_SINCE),
        (NEWEST, STARTS_SINCE, RUN, CHECKS_SINCE),
        (NEWEST, CHECKS_SINCE, RUN, None),
        (CHECKS_SINCE - 1, NAMES_SINCE, RUN, STARTS_SINCE),
        (CHECKS_SINCE - 1, STARTS_SINCE, RUN, None),
        (NAMES_SINCE, 0, RUN, NAMES_SINCE),
        (NAMES_SINCE, NAMES_SINCE, RUN, None),
        (NAMES_SINCE - 1, 0, RUN, PROOFS_SINCE),
        (NAMES_SINCE - 1, PROOFS_SINCE, RUN, None),
        (PROOFS_SINCE - 1, 0, RUN, None),
        (NEWEST, 0, "", PROOFS_SINCE),
    ],
)
def test_the_scheduler_proposes_the_newest_rules_that_all_can_keep(
    newest: int, rules: int, run: str, due: int | None
) -> None:
    """The slowest site says which; a run without an id has nothing to name."""
    spoken = Versions(oldest=2, newest=newest)
    sites = tuple(record(site, versions=spoken if site == B else SPOKEN) for site in (A, B, C))
    roster = roster_of(A, B, C, links=mesh((A, B, C)), run_id=run, rules=rules, sites=sites)
    found = rules_due(roster)
    assert (found if found > rules else None) == due


@pytest.mark.parametrize("version", [PROOFS_SINCE, NAMES_SINCE, STARTS_SINCE, CHECKS_SINCE])
def test_who_does_not_speak_the_version_of_the_rules_cannot_apply_them(version: int) -> None:
    command = SetRules(version=version, views=())
    assert version_needed(command) == version
    assert decode_command(encode_command(command)).needs == version
