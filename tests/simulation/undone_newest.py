"""Rows 103 to 132 of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import Undone

NEWEST = (
    Undone(
        row=103,
        patches=(
            Patch(
                "chaos_protocols.scheduler.reports:Reports.newest_round",
                "self.of_members()",
                "self.told_by_members()",
            ),
        ),
        test="test_awaited:test_what_the_scheduler_did_since_its_own_last_beat_may_have_gone_with_a_failed_site_too",
    ),
    Undone(
        row=104,
        patches=(Patch("chaos_protocols.state.machine:WorkerState.lost", "self.memory.state_lost()", "pass"),),
        test="test_late_copies:test_a_copy_that_was_asked_for_before_the_state_was_lost_counts_for_nothing",
    ),
    Undone(
        row=105,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.machine:RaftMachine.__init__",
                "settings.election_timeout_s if self.configuration.learners else 0.0",
                "0.0",
            ),
        ),
        test="test_failures:test_a_sole_voter_that_was_restarted_removes_nobody_whose_link_is_not_up_again_yet",
    ),
    Undone(
        row=106,
        patches=(
            Patch(
                "chaos_protocols.links.network:Network.link_is_up",
                " and said.incarnation >= self.incarnations[self._site]",
                "",
            ),
        ),
        test="test_failures:test_what_was_said_of_an_earlier_start_of_this_site_is_no_word_of_the_present_link",
    ),
    Undone(
        row=107,
        patches=(Patch("chaos_protocols.state.fetch:StateFetch.part_with_sources", "not self._waits", "False"),),
        test="test_missing_state:test_a_source_that_left_the_run_is_asked_no_more_though_another_is_there",
    ),
    Undone(
        row=108,
        patches=(
            Patch(
                "chaos_protocols.membership.pause:Pause._why_not_yet",
                "(fetch.waits and not brought)",
                "fetch.waits",
            ),
        ),
        test="test_parts:test_while_the_round_of_the_plan_is_not_done_it_says_who_will_send_the_rest_of_the_state",
    ),
    Undone(
        row=109,
        patches=(
            Patch(
                "chaos_protocols.site:SiteMachine._role_changed",
                "self._deposed = True",
                "self._deposed = False",
            ),
        ),
        test="test_failures:test_a_sole_voter_that_a_newer_term_deposed_leads_again_at_once_where_it_reaches_all",
    ),
    Undone(
        row=110,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_offers:RestoreOffers.newest_of",
                "if request.worker_round else (0, 0)",
                "",
            ),
        ),
        test="test_awaited:test_a_fresh_worker_does_not_hide_the_older_checkpoint_on_its_sites_disk",
    ),
    Undone(
        row=111,
        patches=(
            Patch(
                "chaos_protocols.state.fetch:StateFetch.is_promised_in_vain",
                "if trains or not self.waits:",
                "if True:",
            ),
        ),
        test="test_parts:test_who_waits_for_a_round_that_no_source_works_at_any_more_asks_anew",
    ),
    Undone(
        row=112,
        patches=(
            Patch(
                "chaos_protocols.membership.joining:Joining._is_about_a_former_worker",
                "not self._session.present",
                "True",
            ),
        ),
        test="test_refused_worker:test_the_refusal_of_a_former_workers_model_does_not_send_away_one_that_has_the_runs",
    ),
    Undone(
        row=112,
        patches=(
            Patch(
                "chaos_protocols.membership.session_end:SessionEnd.join_answered",
                "self.over(refusal)",
                "self._session.ended()",
            ),
        ),
        test="test_refused_worker:test_a_worker_of_the_run_that_is_sent_away_takes_its_state_with_it",
    ),
    Undone(
        row=113,
        patches=(
            Patch(
                "chaos_protocols.links.desired:DesiredLinks.told_of",
                "self._witnesses.add(source)",
                "pass",
            ),
        ),
        test="test_later_start:"
        "test_who_hears_of_a_later_start_of_itself_dials_the_site_that_is_linked_with_it_and_ends_by_its_proof",
    ),
    Undone(
        row=114,
        patches=(Patch("chaos_protocols.scheduler.waits:WaitsWatch._is_overdue", 'wait.reason != ""', "False"),),
        test="test_waits:test_what_holds_up_a_round_that_stands_for_long_already_is_told_of_sooner",
    ),
    Undone(
        row=115,
        patches=(Patch("chaos_protocols.rounds.reached:ReachedRound.holds", "self._outlived = None", "pass"),),
        test="test_reached:test_a_worker_that_was_given_a_state_since_is_not_the_one_that_outlived_the_daemon",
    ),
    Undone(
        row=116,
        patches=(
            Patch("chaos_protocols.links.link_state:LinkStateTable._believed", "if is_of_run is not None", "if False"),
        ),
        test="test_outsiders_reports:test_a_newcomer_asks_by_its_configured_peer_though_a_guest_claims_a_shorter_way",
    ),
    Undone(
        row=117,
        patches=(Patch("chaos_protocols.state.outrun:Outrun.asks", "self._times >= self._needed", "False"),),
        test="test_catch_up:test_a_site_that_the_rounds_outrun_again_and_again_asks_that_they_wait",
    ),
    Undone(
        row=117,
        patches=(
            Patch("chaos_protocols.scheduler.proposals:_planned", "if outrun and not judged.hold_s:", "if False:"),
        ),
        test="test_state_requests:test_the_rounds_wait_for_a_member_that_they_have_outrun_whatever_the_figures_say",
    ),
    Undone(
        row=118,
        patches=(
            Patch("chaos_protocols.links.network:Network.name_runs", "if roster.record(site) is not None", "if True"),
        ),
        test="test_naming:"
        "test_a_newcomer_goes_on_naming_the_run_with_its_first_roster_whoever_else_was_said_to_speak_less",
    ),
    Undone(
        row=119,
        patches=(
            Patch(
                "chaos_protocols.scheduler.machine:SchedulerMachine.committed",
                "isinstance(command, Replicate)",
                "False",
            ),
        ),
        test="test_restore_candidates:"
        "test_what_a_site_offered_while_its_transfer_waited_for_its_turn_is_void_once_that_begins",
    ),
    Undone(
        row=119,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._forget_who_trains",
                "self.offers.is_void(site)",
                "pass",
            ),
        ),
        test="test_restore_candidates:test_what_comes_late_of_a_site_that_trains_by_now_is_no_offer",
    ),
    Undone(
        row=120,
        patches=(
            Patch("chaos_protocols.links.desired:DesiredLinks.look_for_a_way_back", "len(known.sites) == 1", "False"),
        ),
        test="test_later_start:test_who_has_nobody_else_in_its_roster_dials_those_that_failed_out_of_it",
    ),
    Undone(
        row=121,
        patches=(
            Patch("chaos_protocols.scheduler.restore_awaited:WitnessedRemovals.newest", "max(told, seen)", "told"),
        ),
        test="test_awaited:test_a_site_whose_removal_was_proposed_long_before_has_what_was_done_until_then",
    ),
    Undone(
        row=121,
        patches=(
            Patch(
                "chaos_protocols.site:SiteMachine._witness",
                "isinstance(command, RemoveSite)",
                "False",
            ),
        ),
        test="test_removed_and_left:"
        "test_how_far_the_run_was_when_a_failed_site_was_removed_is_known_whatever_the_entry_says",
    ),
    Undone(
        row=122,
        patches=(
            Patch(
                "chaos_protocols.rounds.reached:ReachedRound.done_before",
                "0 < noted.applied < index",
                "False",
            ),
        ),
        test="test_removed_and_left:"
        "test_how_far_it_was_is_known_after_a_restart_from_what_the_journal_noted_before_the_entry",
    ),
    Undone(
        row=123,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.core:Core.may_campaign",
                "for _, configuration in self.log.in_force(self.commit_index)",
                "for configuration in self.log.configurations_since(self.commit_index)",
            ),
        ),
        test="test_sole_voter:"
        "test_who_has_no_vote_in_the_newest_two_configurations_asks_for_none_whatever_is_known_to_be_committed",
    ),
    Undone(
        row=124,
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.results:ResultExchange.void_after",
                "self._fetch is None or self._fetch.round <= round_number",
                "True",
            ),
        ),
        test="test_results:test_a_result_that_does_not_stand_any_more_is_fetched_no_further",
    ),
    Undone(
        row=125,
        patches=(
            Patch(
                "chaos_protocols.membership.participation:Participation._look_for_a_way_back",
                "and not self._rounds.active",
                "and False",
            ),
        ),
        test="test_later_start:"
        "test_who_is_alone_without_the_state_dials_those_that_failed_whoever_else_is_linked_with_it",
    ),
    Undone(
        row=126,
        patches=(
            Patch(
                "chaos_protocols.membership.leaving:Leaving._go_on",
                "self._last.begin_anew()",
                "pass",
            ),
        ),
        test="test_last_checkpoint:test_who_was_alone_and_has_let_somebody_in_meanwhile_asks_anew",
    ),
    Undone(
        row=126,
        patches=(
            Patch(
                "chaos_protocols.membership.leaving:Leaving.give_up",
                "self._last.begin_anew()",
                "pass",
            ),
        ),
        test="test_last_checkpoint:test_who_gave_up_waiting_and_is_heard_after_all_serves_its_state_until_it_goes",
    ),
    Undone(
        row=127,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._has_the_newest",
                "best.trained and best.round + 1 >= newest",
                "best.trained",
            ),
        ),
        test="test_restore_candidates:"
        "test_that_nobody_can_have_more_than_a_worker_that_had_trained_counts_until_more_is_done",
    ),
    Undone(
        row=128,
        patches=(
            Patch(
                "chaos_protocols.state.last_checkpoint:LastCheckpoint._ended",
                "have > asked",
                "have.round > asked.round",
            ),
        ),
        test="test_last_checkpoint:"
        "test_a_state_from_which_the_run_has_gone_on_meanwhile_is_written_as_that_of_the_later_history",
    ),
    Undone(
        row=129,
        patches=(
            Patch(
                "chaos_protocols.scheduler.waits:WaitsWatch._is_empty",
                "and now_s - self._empty[2] > patience_s",
                "",
            ),
        ),
        test="test_waits:test_a_round_that_comes_up_empty_each_time_it_is_begun_anew_is_told_until_it_is_done",
    ),
    Undone(
        row=130,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._knows_its_choice",
                "report.epoch >= facts.roster.restore_epoch",
                "True",
            ),
        ),
        test="test_restore_point:"
        "test_what_the_chosen_site_has_asked_before_it_heard_of_that_is_no_reason_to_choose_another_one",
    ),
    Undone(
        row=131,
        patches=(Patch("chaos_protocols.membership.asking:Asking._ask_to_join", "if state.is_unsure:", "if False:"),),
        test="test_leaving:test_a_site_asks_to_join_when_its_worker_has_loaded_the_state_that_it_was_given",
    ),
    Undone(
        row=132,
        patches=(
            Patch(
                "chaos_protocols.agreement.replica:RosterReplica.has",
                "or site in raft.voters_in_force",
                "",
            ),
        ),
        test="test_belief:test_a_voter_that_is_to_be_removed_is_heard_until_that_is_known_to_be_committed",
    ),
)
