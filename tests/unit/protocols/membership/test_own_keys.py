"""A site has its key changed, another one approves it, the scheduler has the run agree (spec 20.2 to 20.6)."""

from __future__ import annotations

import msgspec
from tests.rigs.keys import RigKeys
from tests.unit.protocols.agreement.test_keys import RUN, approval_of, approved, chain_of, of_run, settled
from tests.unit.protocols.one_site import EPOCH, A, B, Bench, C, roster_of, sent

from chaos_protocols.agreement.key_commands import keys_of
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import CloseLink, KeyAgreed, Record
from chaos_protocols.events import LinkUp
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import KeysTold, LinkStateAdvertisement, SiteStatus
from chaos_protocols.wire.keys import KeyNews, SiteKeys, use_words, with_change
from chaos_protocols.wire.versions import KEYS_SINCE, SPOKEN, Versions
from chaos_protocols.wishes import KeyApproved, KeyOffered

PAIR = roster_of(A, B, run_id=RUN)
"""Of two members only the scheduler votes: it agrees on everything at once."""


def spoken(roster: Roster, versions: Versions = SPOKEN) -> Roster:
    """All sites speak these."""
    sites = tuple(msgspec.structs.replace(one, versions=versions) for one in roster.sites)
    return msgspec.structs.replace(roster, sites=sites)


def leading(site: SiteId, roster: Roster | None = None, *, number: int = 0) -> Bench:
    """A site that schedules alone, with its key of this number, linked with the other two."""
    ring = KeyRing(RigKeys(site, number), chain_of(site, changes=number))
    bench = Bench(site, roster or spoken(PAIR), voters=(site,), ring=ring)
    bench.up(B if site == A else A).wait(0.3)
    return bench


def report(bench: Bench, source: SiteId, **news: object) -> None:
    """This site's next report says this of keys."""
    keys = KeyNews(**news) if news else None  # type: ignore[arg-type]
    epoch = bench.machine.roster.epoch
    status = SiteStatus(incarnation=1, epoch=epoch, done_round=0, active=True, transfer_bytes=0, keys=keys)
    bench.hear(source, status)
    bench.wait(0.1)


def key_id(site: SiteId, number: int = 1) -> SiteId:
    """Of the key with this number."""
    return SiteId(RigKeys(site).owner(RigKeys(site, number).public_key))


def agreed(bench: Bench, site: SiteId) -> SiteKeys | None:
    return keys_of(bench.machine.roster, site)


def test_a_key_that_is_offered_and_approved_counts_and_then_alone() -> None:
    bench = leading(B)
    report(bench, A, offers=chain_of(A))
    assert agreed(bench, A) is None, "nobody has approved it"
    bench.handle(KeyApproved(site=A, key_id=SiteId("f" * 32)))
    assert agreed(bench, A) is None, "he has heard of another key"
    report(bench, A, offers=chain_of(A), approves=(approval_of(A, 1, RigKeys(A)),))
    assert agreed(bench, A) is None, "it approves itself"
    bench.handle(KeyApproved(site=A, key_id=key_id(A)))
    assert agreed(bench, A) == SiteKeys(site=A, chain=chain_of(A), settled=0)
    report(bench, A, uses=RigKeys(A).sign(use_words(RUN, A, 1)))
    assert agreed(bench, A) == SiteKeys(site=A, chain=chain_of(A), settled=0), "the former key cannot settle it"
    report(bench, A, uses=RigKeys(A, 1).sign(use_words(RUN, A, 1)))
    assert agreed(bench, A) == SiteKeys(site=A, chain=chain_of(A), settled=1)
    told = [one for one in bench.taken() if isinstance(one, Record) and one.kind == "key"]
    assert [one.outcome for one in told] == ["", "done"]


def test_nothing_is_proposed_before_all_sites_know_of_changed_keys() -> None:
    older = spoken(PAIR, Versions(oldest=SPOKEN.oldest, newest=KEYS_SINCE - 1))
    bench = leading(B, older)
    report(bench, A, offers=chain_of(A))
    bench.handle(KeyApproved(site=A, key_id=key_id(A)))
    assert agreed(bench, A) is None
    assert not [one for one in bench.taken() if isinstance(one, Record) and one.subject == "ApproveKey"]


def test_its_own_key_is_noted_for_the_next_start_which_settles_it() -> None:
    bench = leading(A)
    bench.handle(KeyOffered(chain=chain_of(A)))
    report(bench, B, approves=(approval_of(A, 1, RigKeys(B)),))
    assert [one for one in bench.taken() if isinstance(one, KeyAgreed)] == [KeyAgreed(chain=chain_of(A))]
    assert bench.machine.key_news() is None, "it is offered no more"
    again = leading(A, bench.machine.roster)
    assert KeyAgreed(chain=chain_of(A)) in again.taken(), "it may have died before it was noted"
    with_new = leading(A, bench.machine.roster, number=1)
    with_new.wait(0.3)
    known = agreed(with_new, A)
    assert known is not None and known.is_settled
    assert not [one for one in with_new.taken() if isinstance(one, KeyAgreed)]


def test_what_its_operator_takes_back_is_offered_no_more() -> None:
    bench = leading(A)
    bench.handle(KeyOffered(chain=chain_of(A)))
    assert bench.machine.key_news() == KeyNews(offers=chain_of(A))
    bench.handle(KeyOffered(chain=None))
    assert bench.machine.key_news() is None


def test_a_follower_reports_at_once_what_its_operator_approves() -> None:
    bench = Bench(B, spoken(of_run()), voters=(C,), ring=KeyRing(RigKeys(B))).up(A, C)
    bench.handle(KeyApproved(site=A, key_id=key_id(A)))
    assert bench.machine.own_report().keys == KeyNews(approves=(approval_of(A, 1, RigKeys(B)),))
    bench.pretend(of_run(approved()))
    assert bench.machine.participation.keys.approvals, "until it hears that it is agreed"


def test_a_link_with_a_former_key_is_closed_and_what_came_over_it_forgotten() -> None:
    bench = Bench(C, spoken(of_run()), ring=KeyRing(RigKeys(C)))
    for site, incarnation in ((A, 1 << 40), (B, 1)):
        bench.handle(LinkUp(site=site, incarnation=incarnation, address="", chain=chain_of(site, changes=0)))
    far = LinkStateAdvertisement(
        neighbour=B, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="connected"
    )
    bench.hear(A, far, incarnation=1 << 40)
    assert bench.machine.network.incarnations[A] == 1 << 40 and bench.machine.network.router.overlay.report(A, B)
    roster = of_run(approved(), settled())
    bench.taken()
    bench.machine._install(msgspec.structs.replace(spoken(roster), epoch=EPOCH + 9), None)
    out = bench.machine.outbox.take()
    assert [one.site for one in out if isinstance(one, CloseLink)] == [A]
    assert [to for to, _ in sent(out, KeysTold)] == [B], "who stays linked is told"
    assert A not in bench.machine.network.incarnations
    assert bench.machine.network.router.overlay.report(A, B) is None


def test_a_neighbour_is_told_when_its_link_comes_up_and_believed_as_far_as_signed() -> None:
    bench = Bench(C, spoken(of_run(approved(), settled())), ring=KeyRing(RigKeys(C)))
    out = bench.up(B).taken()
    assert sent(out, KeysTold) == [(B, KeysTold(chains=(chain_of(A),)))]
    later = RigKeys(B, 1).public_key
    assert not bench.machine.keys.counts(B, later)
    bench.hear(SiteId("e" * 32), KeysTold(chains=(chain_of(B),)), by=B)
    assert not bench.machine.keys.counts(B, later), "brought by somebody"
    bench.hear(B, KeysTold(chains=(chain_of(B),)))
    assert bench.machine.keys.counts(B, later)
    assert agreed(bench, B) is None


def test_a_link_that_has_taken_the_place_of_another_is_known_by_its_own_key() -> None:
    """The one before is told to be down after the new one has come up."""
    bench = Bench(C, spoken(of_run()), ring=KeyRing(RigKeys(C)))
    forged = with_change(chain_of(A, changes=0), RUN, RigKeys(A), RigKeys(B, 7))
    for incarnation, chain in ((1, chain_of(A)), (9, forged)):
        bench.handle(LinkUp(site=A, incarnation=incarnation, address="", chain=chain))
    assert bench.machine.link_keys.key_of(A) == forged.key
    bench.handle(LinkUp(site=B, incarnation=1, address="", chain=chain_of(B, changes=0)))
    bench.machine._install(msgspec.structs.replace(spoken(of_run(approved(), settled())), epoch=EPOCH + 9), None)
    assert [one.site for one in bench.machine.outbox.take() if isinstance(one, CloseLink)] == [A]
