"""What is agreed on is no longer than a message may be, and can be read by all sites (spec 5.17, 6.6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
from tests.unit.protocols.one_site import A, B, Bench, leader_of, records, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import report

from chaos_protocols.agreement.commands import Command, RemoveLink, RetryRound, encode_command
from chaos_protocols.agreement.raft.messages import COMMAND_BYTES_MAX, SNAPSHOT_BYTES_MAX
from chaos_protocols.agreement.replica import COMPACT_AFTER_ENTRIES
from chaos_protocols.agreement.roster import View
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.pace import Pace
from chaos_protocols.scheduler.proposals import Proposal
from chaos_protocols.wire.plans import SyncPlan, Tree


def test_changes_that_begin_ever_later_have_no_more_views_than_a_command_can_name() -> None:
    """A command has all views that stand: thirty of them, of a hundred sites, were longer than a command may be."""
    for members, trees in ((64, 8), (128, 4), (128, 8), (300, 1), (512, 8)):
        sites = tuple(SiteId(f"{number:032x}") for number in range(members))
        parent = tuple((site, sites[0]) for site in sites[1:])
        tree = Tree(weight=1 / trees, root=sites[0], parent=parent)
        plan = SyncPlan(trees=(tree,) * trees, reason="x" * 1024, several=trees > 1)
        roster, pace = roster_of(A, B), Pace()
        pace.round_s = 0.05
        for number in range(80):
            pace.commit_s = 0.05 * (number + 1)
            facts = SimpleNamespace(roster=roster, done_round=0, contributed_round=0)
            begins = pace.first_round(cast(Facts, facts))
            kept = tuple(view for view in roster.views if view.first_round < begins)
            view = View(epoch=1 << 50, first_round=begins, members=sites, listeners=(), plan=plan)
            roster = msgspec.structs.replace(roster, views=(*kept, view))
        assert len(roster.views) > 1
        assert len(encode_command(RetryRound(views=roster.views, reason="x" * 1024))) < COMMAND_BYTES_MAX


def proposed(bench: Bench, command: Command) -> bool:
    return bench.machine.scheduler.term.proposer.propose(Proposal(command=command), None, now_s=bench.now_s)


def test_a_change_that_no_site_could_read_is_not_proposed_and_ends_no_scheduler() -> None:
    bench = leader_of(B)
    before, views = bench.machine.raft.last_index, bench.machine.roster.views
    for command in (
        RetryRound(views=views, reason="x" * 1025),
        RemoveLink(one=A, other=B, resolve=False, views=views * 65, reason=""),
        RemoveLink(one=SiteId("a" * 33), other=B, resolve=False, views=views, reason="x" * COMMAND_BYTES_MAX),
    ):
        for _ in range(2):
            assert not proposed(bench, command)
    bench.hear(B, report(bench))
    assert bench.machine.raft.last_index == before
    told = records(bench.taken(), "refused")
    assert [one.subject for one in told] == ["RetryRound", "RemoveLink"], "once for each kind"


def test_a_roster_that_no_message_could_carry_does_not_take_the_place_of_the_log() -> None:
    """Every site would have ended at that entry, and again at each start."""
    bench = leader_of(B)
    machine = bench.machine
    first = machine.raft.snapshot
    assert first is not None
    while machine.replica.applied < first.index + COMPACT_AFTER_ENTRIES:
        if machine.replica.applied == first.index + COMPACT_AFTER_ENTRIES - 1:
            links = machine.roster.links * (SNAPSHOT_BYTES_MAX // 100)
            machine.replica.roster = msgspec.structs.replace(machine.roster, links=links)
        assert proposed(bench, RetryRound(views=machine.roster.views, reason=""))
    assert machine.raft.snapshot == first
