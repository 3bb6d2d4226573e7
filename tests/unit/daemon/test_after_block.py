"""What an operator is told that comes of a block."""

from __future__ import annotations

import pytest
from tests.unit.protocols.one_site import A, B, Bench, C, link, roster_of

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SiteId
from chaosd.after_block import told_of_block

NEEDED = "without its vote nothing can be agreed on"


@pytest.mark.parametrize(
    ("voters", "linked", "blocked", "needed"),
    [
        ((B,), (B, C), B, True),  # the founder of a run of two or three, by who joined it
        ((A, B), (B,), B, True),
        ((A, B, C), (B, C), B, False),
        ((A, B, C), (B,), B, True),  # the third one is away
        ((A,), (B,), B, False),
        ((B,), (B, C), C, False),
    ],
)
def test_who_blocks_a_site_whose_vote_is_needed_hears_that_training_may_stand_and_what_to_do(
    voters: tuple[SiteId, ...], linked: tuple[SiteId, ...], blocked: SiteId, needed: bool
) -> None:
    links = tuple(link(A, one) for one in (B, C))
    machine = Bench(A, roster_of(A, B, C, links=links), voters=voters).up(*linked).machine
    told = told_of_block(machine, blocked, ban=True)
    assert "more than half of the other members" in told and (NEEDED in told) is needed
    assert (f"`chaosd unblock {blocked[:8]}`" in told and "`chaosd recover`" in told) is needed


@pytest.mark.parametrize(
    ("roster", "banned", "alone"),
    [
        (roster_of(A, B), B, True),
        (roster_of(A, B, learners=(C,)), B, True),
        (roster_of(A, B, C), B, False),
        (roster_of(A, B), C, False),  # it is none of the run, and both have a say
        (roster_of(B, C, learners=(A,)), B, False),  # a learner has none
    ],
)
def test_who_bans_as_the_only_other_member_hears_that_the_site_is_out_at_once(
    roster: Roster, banned: SiteId, alone: bool
) -> None:
    """Of two members one is more than half of the others: there is nothing to wait for, and no way back."""
    machine = Bench(A, roster, voters=(A,)).machine
    told = told_of_block(machine, banned, ban=True)
    assert ("this word alone puts it out of the run, for good" in told) is alone
    assert ("as soon as more than half of the other members" in told) is not alone
