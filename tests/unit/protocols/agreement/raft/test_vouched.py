"""Whom nobody vouches for who votes, as far as a site knows, leads it once it shows its votes (spec 4.12)."""

from __future__ import annotations

from tests.unit.protocols.agreement.raft.cluster import configuration
from tests.unit.protocols.agreement.raft.test_proofs import away, believes, claim, led, shown, vote

from chaos_protocols.names import SiteId


def test_who_was_away_follows_those_of_now_though_no_rules_are_agreed_and_no_voter_names_them() -> None:
    """Votes are signed, and mandates given, before anybody has to show them (seed 529, 3 sites, with operators)."""
    cluster, leader, _ = led("abc", "defg", rules=False)
    gone = away(cluster, leader)
    cluster.alone.add(SiteId(gone))
    cluster.start(gone)
    cluster.run_until(lambda: cluster[gone].configuration == configuration("defg", "abc"))
    assert cluster[gone].leader == "d" and not cluster.unproven


def test_whom_nobody_vouches_for_leads_nobody_without_votes_where_no_rules_are_agreed() -> None:
    cluster, leader, (one, other) = led(rules=False)
    machine, before = cluster[one], cluster[one].term
    for _ in range(2):
        asked = machine.receive(SiteId(other), claim(cluster, one, other, 9), now_s=cluster.now_s, vouched=False)
        cluster.act(one, asked)
        proof = shown(other, 9, vote(other, other, 9))
        cluster.act(one, machine.receive(SiteId(other), proof, now_s=cluster.now_s, vouched=False))
        cluster.run(0.2)
        assert (machine.term, machine.leader) == (before, leader)
    assert [(told.leader, told.term) for told in cluster.unproven] == [(other, 9)] * 2
    assert believes(cluster, one, other, 9), "whom a voter names needs none, until that is agreed"
