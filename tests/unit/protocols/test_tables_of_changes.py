"""Roles, links and sources change as their tables say; any other change is a defect, and says which."""

from __future__ import annotations

import pytest
from tests.unit.protocols.one_site import SETTINGS, A, B, Bench, roster_of

from chaos_protocols.agreement.raft import Role
from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.links.liveness import LinkPhase, LinkTable, Neighbour
from chaos_protocols.state.transfer import SourceState
from chaos_protocols.state.transfer.sources import Source


def test_a_follower_does_not_become_the_leader_without_a_vote() -> None:
    core = Bench(B, roster_of(A, B), voters=(A, B)).machine.raft._core
    with pytest.raises(LocalProtocolError, match="from follower to leader"):
        core.change_role(Role.LEADER, B, "it would like to")


def test_a_link_that_is_down_is_not_redialled_before_it_was_up() -> None:
    links = LinkTable(SETTINGS, now_s=0.0)
    with pytest.raises(LocalProtocolError, match="from down to redialling"):
        links._enter(Neighbour(B), LinkPhase.REDIALLING)


def test_a_source_that_has_nothing_right_to_give_is_not_asked_again() -> None:
    source = Source(B, 10)
    source.become(SourceState.READY, 1.0)
    source.become(SourceState.EXCLUDED, 2.0)
    source.become(SourceState.EXCLUDED, 3.0)
    with pytest.raises(LocalProtocolError, match="from excluded to ready"):
        source.become(SourceState.READY, 4.0)
