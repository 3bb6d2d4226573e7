"""Rows 72 and later of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import Undone

LATEST = (
    Undone(
        row=72,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.may_lead",
                "any(self._last_words.get(voter) == source for voter in voters)",
                "source == self._hint and self._hint_by in voters",
            ),
        ),
        test="test_belief:test_a_site_that_got_its_vote_meanwhile_is_named_by_a_voter_that_was_left_behind_too",
    ),
    Undone(
        row=73,
        patches=(
            Patch(
                "chaos_protocols.state.fetch:StateFetch.is_called_off",
                "return sources_gone and agreed.transfer == self.plan.transfer",
                "return False",
            ),
        ),
        test="test_missing_state:test_a_transfer_ends_when_its_sources_are_out_of_the_roster",
    ),
    Undone(
        row=74,
        patches=(
            Patch(
                "chaos_protocols.rounds.lost_results:LostResults.give_up_listening",
                "if all(source in one.members for one in later):",
                "if False:",
            ),
        ),
        test="test_rounds_of_a_site:test_a_departure_of_a_history_that_was_given_up_costs_no_listener_its_state",
    ),
)
