"""Rows 181 to 210 of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import Undone

DECIDED = (
    Undone(
        row=181,
        patches=(
            Patch(
                "chaos_protocols.membership.recovering:Recovering.ask",
                "over := self._why_over(pending)",
                'over := ""',
            ),
        ),
        test="test_recovering:test_it_is_over_when_the_run_goes_on_from_another_state",
    ),
    Undone(
        row=182,
        patches=(
            Patch(
                "chaos_protocols.scheduler.proposer:Proposer.quorum_in_reach", "if host.has_answered(site)", "if True"
            ),
        ),
        test="test_failures:test_nobody_is_removed_with_the_vote_of_who_has_not_answered_in_this_term",
    ),
    Undone(
        row=183,
        patches=(
            Patch(
                "chaos_protocols.inbound:Inbound._may_lead_or_show",
                "vouched or self._network.versions.speaks(source, PROOFS_SINCE)",
                "vouched",
            ),
        ),
        test="test_unproven:test_whom_no_voter_names_is_asked_who_elected_it",
    ),
    Undone(
        row=183,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.proof:mandate_for",
                "or not core.run_id",
                "or not core.proof_needed",
            ),
        ),
        test="test_vouched:test_who_was_away_follows_those_of_now_though_no_rules_are_agreed_and_no_voter_names_them",
    ),
    Undone(
        row=183,
        patches=(
            Patch(
                "chaos_protocols.membership.asking:Asking._ask_to_join",
                "self._joining.is_in_vain(self._client.scheduler)",
                "False",
            ),
        ),
        test="test_unproven:test_who_cannot_show_it_is_asked_ever_more_seldom_to_let_this_site_in_which_says_why",
    ),
    Undone(
        row=184,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_offers:is_given_up",
                "0 < roster.restored_lineage < lineage",
                "False",
            ),
        ),
        test="test_operators_word:"
        "test_a_history_that_began_before_an_operator_chose_a_state_of_an_older_one_is_given_up_too",
    ),
    Undone(
        row=184,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_offers:heeded",
                "min(age[0], roster.restored_lineage or age[0])",
                "age[0]",
            ),
        ),
        test="test_operators_word:test_who_took_a_history_along_that_was_given_up_may_have_what_the_operator_chose",
    ),
    Undone(
        row=185,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.proof:_leads_from",
                "if mandate.term < newest:",
                "if False:",
            ),
        ),
        test="test_mandates:test_who_has_led_once_gives_itself_no_mandate_later",
    ),
    Undone(
        row=185,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.proof:_newest_term",
                "core.noted_agreed",
                "index",
            ),
        ),
        test="test_mandates:test_nor_does_it_where_a_site_was_started_anew",
    ),
    Undone(
        row=186,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.proof:fault_of_mandate",
                "if mandate is None:",
                "if True:",
            ),
        ),
        test="test_mandates:test_a_leader_leaves_no_mandate_for_a_term_to_come",
    ),
    Undone(
        row=187,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.log:Log.mandates_between",
                "!= [by[at]] * 3",
                "and by[at + 1 : at + 2] != [by[at]]",
            ),
        ),
        test="test_mandates:test_a_leader_shows_the_votes_that_elected_it_though_some_count_no_more",
    ),
    Undone(
        row=188,
        patches=(Patch("chaos_protocols.scheduler.reports:Reports.ending_sites", "of_members", "told_by_members"),),
        test="test_leaver_with_the_state:test_who_has_just_lost_the_state_at_the_scheduler_is_none_that_ends",
    ),
    Undone(
        row=189,
        patches=(Patch("chaos_protocols.links.network:Network._forget_shown", "shown.pop(site, None)", "pass"),),
        test="test_open_admission:test_the_start_and_the_key_that_it_showed_are_forgotten_with_it",
    ),
    Undone(
        row=190,
        patches=(
            Patch(
                "chaos_protocols.scheduler.pace:Pace.first_round",
                "sum(map(_size_bytes, roster.views)) > VIEWS_AHEAD_BYTES_MAX",
                "False",
            ),
        ),
        test="test_long_commands:test_changes_that_begin_ever_later_have_no_more_views_than_a_command_can_name",
    ),
    Undone(
        row=191,
        patches=(Patch("chaos_protocols.site:SiteMachine.propose", "self.replica.unfit(data)", '""'),),
        test="test_long_commands:test_a_change_that_no_site_could_read_is_not_proposed_and_ends_no_scheduler",
    ),
    Undone(
        row=191,
        patches=(
            Patch(
                "chaos_protocols.agreement.replica:RosterReplica.compact",
                " if len(state) <= SNAPSHOT_BYTES_MAX else []",
                "",
            ),
        ),
        test="test_long_commands:test_a_roster_that_no_message_could_carry_does_not_take_the_place_of_the_log",
    ),
    Undone(
        row=192,
        patches=(
            Patch(
                "chaos_protocols.links.desired:DesiredLinks.change_requested",
                "(one.request.other, one.request.add) == undone",
                "False",
            ),
        ),
        test="test_participation:test_the_last_word_on_a_link_is_the_one_that_is_asked_again",
    ),
    Undone(
        row=192,
        patches=(
            Patch(
                "chaos_protocols.links.desired:DesiredLinks.follow",
                "self._requests.pop(self._own_request(site), None)",
                "pass",
            ),
        ),
        test="test_participation:test_what_a_site_asks_for_by_itself_is_over_when_a_user_has_removed_that_link",
    ),
    Undone(
        row=193,
        patches=(Patch("chaos_protocols.membership.catch_up:CatchUp.promoted", " or not command.views", ""),),
        test="test_made_up:test_a_promotion_that_names_no_round_is_waited_for_by_nobody",
    ),
    Undone(
        row=193,
        patches=(
            Patch(
                "chaos_protocols.state.result_log:are_all",
                "len(results) == until - after and all(one[0] == after + at for at, one in enumerate(results, 1))",
                "[one[0] for one in results] == list(range(after + 1, until + 1))",
            ),
        ),
        test="test_made_up:test_results_that_follow_each_other_are_found_without_counting",
    ),
    Undone(
        row=194,
        patches=(
            Patch(
                "chaos_protocols.rounds.machine:RoundMachine.worker_loaded",
                "self.check.said(round_number, None)",
                "pass",
            ),
        ),
        test="test_drift_of_a_site:test_what_was_found_of_a_state_is_not_said_of_another_of_the_same_round",
    ),
    Undone(
        row=195,
        patches=(
            Patch(
                "chaos_protocols.rounds.lost_results:LostResults.give_up_fetching",
                " or came_s > self._came_s",
                "",
            ),
        ),
        test="test_results_of_a_site:test_a_result_is_waited_for_as_long_as_its_bytes_come_however_long_that_takes",
    ),
    Undone(
        row=196,
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.results:ResultExchange.void_after",
                " if number <= round_number}",
                "}",
            ),
        ),
        test="test_results:"
        "test_who_holds_a_result_that_is_void_is_asked_for_the_one_that_stands_and_answers_when_it_has_that",
    ),
    Undone(
        row=197,
        patches=(
            Patch(
                "chaos_protocols.rounds.state_check:StateCheck.due",
                " and is_piece(self._next[1], state_bytes)",
                "",
            ),
        ),
        test="test_state_check:test_of_a_piece_that_none_would_be_asked_for_nothing_is_digested",
    ),
    Undone(
        row=198,
        patches=(
            Patch(
                "chaos_protocols.state.worker_region:WorkerRegion.answered",
                "self._maybe.add(round_number)",
                "pass",
            ),
        ),
        test="test_worker_region:test_a_region_is_not_free_while_a_second_order_of_the_same_round_may_lie_unread",
    ),
    Undone(
        row=199,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint.ordered",
                "request.request == self._carried",
                "False",
            ),
        ),
        test="test_operators_word:test_a_word_that_is_asked_again_before_its_entry_is_agreed_on_is_not_refused",
    ),
    Undone(
        row=200,
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.tree:TreeFlow._send_empty",
                "weights=weights, checks=checks",
                "weights=weights",
            ),
        ),
        test="test_rounds:test_every_site_gets_the_reference_average_whatever_the_order_and_the_links",
    ),
    Undone(
        row=201,
        patches=(Patch("chaos_protocols.rounds.check_words:check_words", "tag.epoch, tag.round,", "tag.epoch,"),),
        test="test_made_up_checks:test_a_word_that_a_site_has_not_signed_of_this_round_is_not_its_own",
    ),
    Undone(
        row=201,
        patches=(Patch("chaos_protocols.rounds.check_words:check_words", "tag.epoch, tag.round,", "tag.round,"),),
        test="test_made_up_checks:test_a_word_that_a_site_has_not_signed_of_this_round_is_not_its_own",
    ),
    Undone(
        row=201,
        patches=(Patch("chaos_protocols.rounds.state_check:_vote", "if missing and", "if False and"),),
        test="test_made_up_checks:test_nobody_is_judged_while_those_who_were_not_heard_could_turn_it_round",
    ),
    Undone(
        row=201,
        patches=(
            Patch(
                "chaos_protocols.rounds.state_check:StateCheck.judge",
                "if told.differ and are_signed(roster):",
                "if False:",
            ),
        ),
        test="test_made_up_checks:"
        "test_a_root_that_makes_up_what_all_others_said_of_their_states_has_none_of_them_give_its_own_up",
    ),
    Undone(
        row=202,
        patches=(Patch("chaos_protocols.membership.drift:Drift.found", "self._doubt_files(differ.round)", "pass"),),
        test="test_drifted_files:test_a_file_of_a_state_that_was_found_to_differ_is_offered_no_more",
    ),
    Undone(
        row=202,
        patches=(
            Patch("chaos_protocols.state.local_checkpoint:CheckpointFiles.doubt", "self._outbox.emit([aside])", "pass"),
        ),
        test="test_drifted_files:test_a_file_of_a_state_that_was_found_to_differ_is_offered_no_more",
    ),
    Undone(
        row=203,
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.machine:ReduceMachine._parent_has_dropped",
                "if current.member:",
                "if False:",
            ),
        ),
        test="test_untrue_neighbours:test_a_member_gives_nothing_up_because_its_parent_says_that_the_result_is_gone",
    ),
    Undone(
        row=204,
        patches=(
            Patch("chaos_protocols.rounds.machine:RoundMachine._discard_after", "self.check.said(done, None)", "pass"),
        ),
        test="test_drift_of_a_site:test_who_stands_by_says_nothing_of_a_history_that_was_given_up",
    ),
    Undone(
        row=205,
        patches=(
            Patch(
                "chaos_protocols.rounds.state_check:StateCheck._news",
                "for site in outvoted:",
                "self._quiet = {one: quiet for one, quiet in self._quiet.items() if one in found.outvoted}\n"
                "    for site in outvoted:",
            ),
        ),
        test="test_state_check:test_a_site_that_differs_all_the_time_is_quiet_whoever_else_does_now_and_then",
    ),
    Undone(
        row=206,
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.tree:TreeFlow._checks_of",
                " and len(self.place.members) <= CHECKED_SITES_MAX",
                "",
            ),
        ),
        test="test_untrue_neighbours:test_in_a_run_of_too_many_sites_nobody_hands_on_what_a_member_says_of_its_state",
    ),
    Undone(
        row=207,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_offers:RestoreOffers._links",
                "if facts.has_said_up(one, site) and facts.link_is_up(site, one))",
                "if facts.link_is_up(site, one))",
            ),
        ),
        test="test_restore_candidates:"
        "test_what_a_joiner_has_counts_where_it_is_linked_with_a_member_and_not_where_it_says_so",
    ),
    Undone(
        row=208,
        patches=(Patch("chaos_protocols.rounds.next_round:first_round_of", "elif first is not None:", "elif False:"),),
        test="test_far_behind:test_who_was_in_the_run_before_takes_part_from_its_first_round_since_on",
    ),
    Undone(
        row=209,
        patches=(
            Patch("chaos_protocols.state.transfer.assignment:Assignment.passed_by", "source.hear(now_s)", "pass"),
        ),
        test="test_joiner:test_what_still_comes_of_an_earlier_transfer_shows_that_its_source_is_not_silent",
    ),
    Undone(
        row=210,
        patches=(
            Patch(
                "chaos_protocols.scheduler.waits:_is_missing",
                "return report.done_round < tag.round - 1",
                "return False",
            ),
        ),
        test="test_waits:test_who_fetches_the_result_that_was_agreed_to_stand_is_waited_for_with_that_reason",
    ),
)
