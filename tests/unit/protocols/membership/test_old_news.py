"""What was agreed some time ago, and is applied now: in a daemon's journal, while its site was away, before it came."""

from __future__ import annotations

import pytest
from tests.unit.protocols.follower import Follower, views
from tests.unit.protocols.one_site import EPOCH, A, B, C, D, records, roster_of

from chaos_protocols.agreement.commands import Command, PromoteSite, SetBounds, encode_command
from chaos_protocols.agreement.raft.messages import AppendRequest, LogEntry
from chaos_protocols.agreement.replica import LATE
from chaos_protocols.effects import Record
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.control import RaftEnvelope

ROSTER = roster_of(A, B, learners=(C,))
KINDS = ("scale-out", "bound")


def promotion() -> Command:
    """C is to be a member, and a round waits for it."""
    return PromoteSite(site=C, views=views(Follower(B, ROSTER), 2, add_member=C), waits=True)


def bounds() -> Command:
    return SetBounds(bounds=Bounds(norm_max=2.0), by=(A, B), views=views(Follower(B, ROSTER), 2))


def told(bench: Follower, kind: str) -> list[Record]:
    return records(bench.out, kind)


@pytest.mark.parametrize(("kind", "command"), [("scale-out", promotion()), ("bound", bounds())])
class TestWhatIsAgreed:
    def test_now_is_an_event_of_now(self, kind: str, command: Command) -> None:
        bench = Follower(B, ROSTER)
        bench.alive(5.0)
        bench.agreed(command)
        (one,) = told(bench, kind)
        assert LATE not in one.reason

    def test_while_a_site_was_away_is_told_with_that(self, kind: str, command: Command) -> None:
        bench = Follower(B, ROSTER)
        bench.wait(10.0)
        bench.agreed(command)
        (one,) = told(bench, kind)
        assert one.reason.endswith(LATE)
        bench.alive(1.0)

    def test_and_was_told_by_a_former_life_of_the_daemon_is_told_no_more(self, kind: str, command: Command) -> None:
        entry = LogEntry(index=EPOCH + 1, term=1, command=encode_command(command), configuration=None)
        bench = Follower(B, ROSTER, entries=(entry,))
        before = bench.roster
        said = AppendRequest(
            term=2, leader=A, previous_index=EPOCH + 1, previous_term=1, entries=(), commit_index=EPOCH + 1, tenure=1
        )  # fmt: skip
        bench.hear(A, RaftEnvelope(message=said))
        assert bench.roster != before and told(bench, kind) == []

    def test_in_the_place_of_what_the_journal_had_is_news(self, kind: str, command: Command) -> None:
        lost = LogEntry(index=EPOCH + 1, term=1, command=encode_command(command), configuration=None)
        bench = Follower(B, ROSTER, entries=(lost,))
        bench.agreed(command)  # at the same place, in a later term
        assert len(told(bench, kind)) == 1

    @pytest.mark.parametrize("outside", [D])
    def test_before_a_site_came_is_no_event_there(self, kind: str, command: Command, outside: SiteId) -> None:
        bench = Follower(outside, ROSTER)
        bench.agreed(command)
        assert bench.roster.epoch > EPOCH and told(bench, kind) == []
