"""What a scheduler that lies has had agreed ends no daemon, which would meet it again at each start."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import Follower, hello, training_member
from tests.unit.protocols.one_site import A, B, D, roster_of

from chaos_protocols.agreement.commands import PromoteSite, RoundResolved
from chaos_protocols.state.result_log import are_all


def test_a_worker_comes_to_a_site_that_was_told_of_a_far_round() -> None:
    """All numbers between were counted up, in a list."""
    bench = Follower(B, roster_of(A, B, resolving=True, resolved_round=3))
    views = tuple(msgspec.structs.replace(view, first_round=(1 << 52) + 1) for view in bench.roster.views)
    bench.agreed(RoundResolved(round=1 << 52, digest="", holders=(), views=views))
    assert bench.machine.rounds.completed_round == 1 << 52
    hello(bench)
    assert bench.machine.participation.session.present


def test_results_that_follow_each_other_are_found_without_counting() -> None:
    far = 1 << 52
    assert are_all([], 7, 7) and are_all([(8, 1, 1.0), (9, 1, 1.0)], 7, 9)
    assert not are_all([], 0, far) and not are_all([(8, 1, 1.0), (10, 1, 1.0)], 7, 9)
    assert are_all([(far, 1, 1.0)], far - 1, far)


def test_a_promotion_that_names_no_round_is_waited_for_by_nobody() -> None:
    bench = training_member()
    bench.agreed(PromoteSite(site=D, views=(), waits=True))
    bench.alive(0.5)
    assert bench.roster.views == ()
