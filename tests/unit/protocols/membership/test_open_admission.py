"""A site where everybody may connect: whom it believes while it was in no run, and what is left of those that are gone
(spec 4.12, 4.15, 4.22)."""

from __future__ import annotations

import msgspec
from tests.rigs.keys import RigKeys
from tests.unit.protocols.links.test_router import report
from tests.unit.protocols.membership.test_belief import forged
from tests.unit.protocols.one_site import EPOCH, A, B, Bench, C, D, E, heartbeat, link, roster_of, router_of

from chaos_protocols import events
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.links.link_state import REPORTS_EACH_MAX
from chaos_protocols.links.liveness import GONE_MAX
from chaos_protocols.links.site_versions import KNOWN_MAX
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.steps import STEPS_TOLD_MAX, SiteStep
from chaos_protocols.wire.versions import SPOKEN

LINE = roster_of(A, B, C, links=(link(A, B), link(B, C)))


def key(number: int) -> SiteId:
    return SiteId(f"{number:032x}")


def open_site(*sponsors: SiteId) -> Bench:
    """B, in no run yet, without peers; its operator has named these."""
    bench = Bench(B)
    bench.handle(events.PeersChanged(peers=(), sponsors=sponsors))
    return bench.up(A, D)


def test_a_stranger_makes_no_run_of_an_open_site_that_names_nobody() -> None:
    bench = open_site()
    bench.hear(D, heartbeat(epoch=3, scheduler=D, knows_you=False))
    bench.hear(D, forged(D))
    assert not bench.machine.is_trusted(D) and bench.machine.scheduler_site() is None
    assert bench.machine.raft.snapshot is None and not bench.machine.roster.sites


def test_an_open_site_believes_whom_its_operator_has_named() -> None:
    bench = open_site(A)
    bench.hear(D, forged(D))
    assert bench.machine.raft.snapshot is None
    bench.hear(A, forged(A))
    assert bench.machine.roster.member_ids() == (A,)


def test_who_was_linked_once_is_not_remembered_for_ever() -> None:
    """Where everybody may connect a key costs nothing, and each was remembered, looked at with every beat, and told to
    every new neighbour, until the next start."""
    bench = Bench(B, LINE).up(A, C)
    gone = [key(number) for number in range(1, 3 * GONE_MAX)]
    for site in gone:
        bench.handle(events.LinkUp(site=site, incarnation=1, address="", versions=SPOKEN, software="1"), after_s=0.01)
        bench.hear(site, heartbeat(scheduler=None))
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="it went", broke_a_rule=False))
        bench.wait(0.1)
    bench.wait(30.0)
    network = bench.machine.network
    kept = set(gone[-GONE_MAX:])
    assert set(network.links.neighbours) == {A, C} | kept
    assert {one.message.neighbour for one in network.router.overlay.envelopes() if one.source == B} <= {A, C} | kept
    assert len(network.versions._met) <= GONE_MAX + 2 and len(network.steps._known) <= GONE_MAX + 2


def test_the_start_and_the_key_that_it_showed_are_forgotten_with_it() -> None:
    """Of whom the run knows they are kept: whoever has a former key of such a site is not let in again."""
    bench = Bench(B, LINE, ring=KeyRing(RigKeys(B))).up(A)
    members, shown = KeyChain(first=RigKeys(C).public_key), bench.machine.network
    bench.handle(events.LinkUp(site=C, incarnation=1, address="", chain=members))
    bench.handle(events.LinkLost(site=C, incarnation=1, reason="cut"))
    for number in range(1, 3 * GONE_MAX):
        chain = KeyChain(first=RigKeys(key(number)).public_key)
        bench.handle(events.LinkUp(site=key(number), incarnation=1, address="", chain=chain), after_s=0.01)
        bench.handle(events.LinkLost(site=key(number), incarnation=1, reason="it went"))
        bench.wait(0.1)
    bench.wait(30.0)
    assert set(shown.incarnations) == {A, B, C, *(key(number) for number in range(2 * GONE_MAX, 3 * GONE_MAX))}
    assert len(shown._keys) == GONE_MAX + 1 and shown.spoke_with(C) == members


def test_of_who_was_of_the_run_long_ago_and_never_had_a_link_here_not_all_are_remembered_either() -> None:
    bench = Bench(B, LINE).up(A, C)
    network = bench.machine.network
    for number in range(1, KNOWN_MAX + 1):
        network.saw_incarnation(key(number), 1, KeyChain(first=b"k" * 32))
    bench.wait(1.0)
    assert set(network.incarnations) == {A, B, C} and not network._keys


def test_a_member_that_is_down_and_a_peer_are_remembered_whatever_comes_and_goes() -> None:
    run = roster_of(A, B, C, D, links=(link(A, B), link(B, C), link(A, D)))
    bench = Bench(B, run, peers=(E,)).up(A, C, D)
    bench.hear(D, heartbeat(round=7))
    for site in (C, D):
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="cut", broke_a_rule=False))
    bench.handle(events.DialFailed(site=D, reason="nobody there"))
    for number in range(1, 2 * GONE_MAX):
        bench.handle(events.LinkUp(site=key(number), incarnation=1, address=""), after_s=0.001)
        bench.handle(events.LinkLost(site=key(number), incarnation=1, reason="it went", broke_a_rule=False))
        bench.handle(events.DialFailed(site=key(number), reason="nobody there"))
    bench.machine.network.forget_gone()
    assert len(bench.machine.network.links.neighbours) == GONE_MAX + 4
    assert {A, C, D, E} <= set(bench.machine.network.links.neighbours)
    assert bench.machine.network.steps.of(D) is not None, "though the roster has no link of this site with it"


def test_links_with_outsiders_that_are_gone_keep_no_true_link_of_that_site_out() -> None:
    """At the others: a site that lets everybody in tells of each who came and went."""
    one, roster = router_of(B), LINE
    far = REPORTS_EACH_MAX + 50

    def told(neighbour: SiteId, sequence: int, *, up: bool = True) -> bool:
        said = report(A, neighbour, up=up, sequence=sequence)
        return one.receive(A, said, roster=roster, own_up=(A, C))[0] is not None

    for number in range(1, far):
        assert told(key(number), 2 * number) and told(key(number), 2 * number + 1, up=False)
    assert len(one.overlay.envelopes()) <= REPORTS_EACH_MAX + 3
    assert told(E, 3 * far), "a newcomer's link"
    assert not told(key(1), 3, up=False), "what had to give way is no news"


def test_open_links_with_outsiders_do_not_give_way() -> None:
    one = router_of(B)
    said = [report(A, key(number), sequence=number) for number in range(1, REPORTS_EACH_MAX + 20)]
    taken = [one.receive(A, each, roster=LINE, own_up=(A, C))[0] is not None for each in said]
    assert taken.count(True) == REPORTS_EACH_MAX + 3 and not taken[-1]


def test_a_guest_says_nothing_of_where_others_stand() -> None:
    """What it makes up would fill the table, and tell an operator who recovers a run that others are further."""
    bench = Bench(B, roster_of(A, B, C)).up(A, D)
    lies = tuple(
        SiteStep(site=site, incarnation=9, sequence=9, round=999, phase="compute", age_s=0.0)
        for site in (C, *(key(number) for number in range(STEPS_TOLD_MAX - 1)))
    )
    bench.hear(D, msgspec.structs.replace(heartbeat(), others=lies))
    assert bench.machine.network.steps.of(C) is None and len(bench.machine.network.steps._known) == 1
    bench.hear(A, msgspec.structs.replace(heartbeat(), others=lies[:1]))
    heard = bench.machine.network.steps.of(C)
    assert heard is not None and heard.round == 999, "a neighbour of the run is believed, and may lie"


def test_who_was_never_in_the_run_is_not_asked_for_a_round_s_result() -> None:
    gone = Departure(site=C, incarnation=1, cause="failed", reason="", last_round=3)
    bench = Bench(B, roster_of(A, B, departed=(gone,))).up(A, C, D)
    assert [bench.machine.may_hold_results(site) for site in (A, C, D)] == [True, True, False]


def test_the_words_of_who_is_of_the_run_no_more_are_forgotten_and_no_others() -> None:
    """For years sites come and go; a voter that has spoken before them all is believed still."""
    bench = Bench(B, roster_of(A, B, C), voters=(A, B, C)).up(A, C)
    client = bench.machine.participation.client
    bench.hear(C, heartbeat(scheduler=D))
    assert client.may_lead(D) and not client.may_lead(E)
    for number in range(20):
        passing = key(number)
        bench.pretend(roster_of(A, B, C, passing, epoch=EPOCH + 1 + number))
        bench.up(passing).hear(passing, heartbeat(scheduler=A))
        assert passing in client._last_words
    assert set(client._last_words) == {C, passing}
    assert client.may_lead(D)
