"""Rows 163 and later of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import Undone

THOUGHT = (
    Undone(
        row=163,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint.step",
                'self._inactive_since_s, self.waiting, self._order = None, "", None',
                'self._inactive_since_s, self.waiting = None, ""',
            ),
        ),
        test="test_operators_word:test_an_operators_word_is_over_once_the_run_goes_on",
    ),
    Undone(
        row=164,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._unspoken",
                'report.worker_round and record.state == "member"',
                "False",
            ),
        ),
        stories=(167,),
        test="test_leaver_with_the_state:test_a_leaver_that_cannot_go_yet_and_alone_has_the_state_is_waited_for",
    ),
    Undone(
        row=165,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.leave_requested",
                "running.asked_again(request.incarnation, request.keeps)",
                "pass",
            ),
        ),
        test="test_leaver_with_the_state:test_a_leaver_that_cannot_go_yet_takes_along_what_it_has_by_then",
    ),
    Undone(
        row=166,
        patches=(
            Patch(
                "chaos_protocols.scheduler.removals:_taken_along",
                "or not stay or",
                "or",
            ),
        ),
        stories=(165,),
        test="test_leaver_with_the_state:test_where_all_end_at_once_nobody_is_left_to_wait",
    ),
    Undone(
        row=167,
        patches=(
            Patch("chaos_protocols.scheduler.reports:Reports.done_rounds", "if one.epoch >= resolved", "if True"),
        ),
        test="test_progress:test_what_a_site_had_done_before_its_restart_releases_no_leaver",
    ),
    Undone(
        row=168,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._offered",
                "if one.record.site not in banned",
                "if True",
            ),
        ),
        test="test_bans:test_whom_most_members_want_out_is_not_let_in_for_its_state",
    ),
    Undone(
        row=168,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._departed", "or gone.site in banned", "or False"
            ),
        ),
        test="test_bans:test_whom_most_members_want_out_is_not_let_in_for_its_state",
    ),
    Undone(
        row=169,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._who_loads", "if not self._looked:", "if False:"
            ),
        ),
        test="test_operators_word:test_who_was_chosen_may_read_its_checkpoint_though_another_site_schedules_by_then",
    ),
    Undone(
        row=170,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._is_taken_unasked",
                "and not is_given_up(self._facts.roster, one.age)",
                "",
            ),
        ),
        stories=(168,),
        test="test_operators_word:test_what_an_operator_has_given_up_is_taken_again_on_an_operators_word_alone",
    ),
    Undone(
        row=170,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._newest",
                "if is_given_up(roster, age)",
                "if False",
            ),
        ),
        test="test_operators_word:test_nobody_is_waited_for_with_what_an_operator_has_given_up",
    ),
    Undone(
        row=170,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._is_newer",
                "and not is_given_up(self._facts.roster, age)",
                "",
            ),
        ),
        test="test_operators_word:test_nobody_is_waited_for_with_what_an_operator_has_given_up",
    ),
    Undone(
        row=171,
        patches=(
            Patch(
                "chaos_protocols.scheduler.proposals:_planned",
                "if not may_hold or min(spoken",
                "if min(spoken",
            ),
        ),
        test="test_held_in_vain:test_the_rounds_do_not_wait_again_for_a_member_that_has_not_asked_for_it",
    ),
    Undone(
        row=172,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.bounds_wanted",
                "in (begins, 0)",
                "== begins",
            ),
        ),
        test="test_bounding:test_a_wish_lasts_where_the_run_goes_on_from_another_state_under_the_same_bounds",
    ),
    Undone(
        row=173,
        patches=(
            Patch(
                "chaos_protocols.membership.catch_up:CatchUp.report",
                "rounds.caught_up or (membership.is_member and not self._fetch.has_worker)",
                "rounds.caught_up",
            ),
        ),
        test="test_catch_up:test_a_member_whose_worker_is_gone_says_that_the_transfer_to_it_is_over",
    ),
    Undone(
        row=174,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.link_requested",
                "return answer(True, NO_SUCH_LINK)",
                "return answer(False, NO_SUCH_LINK)",
            ),
        ),
        test="test_admission:test_a_removal_whose_answer_was_lost_is_done_when_the_next_scheduler_is_asked",
    ),
    Undone(
        row=175,
        patches=(
            Patch(
                "chaos_protocols.membership.pause:Pause._why_no_state",
                "if self._waits.resting",
                "if False",
            ),
        ),
        test="test_missing_state:test_a_state_is_not_called_lost_while_those_that_have_it_rest",
    ),
    Undone(
        row=176,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint.ordered",
                "if self._reports.anybody_rests():",
                "if False:",
            ),
        ),
        test="test_operators_word:test_an_operator_hears_at_once_that_those_who_have_the_state_only_pause",
    ),
    Undone(
        row=177,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.state_requested",
                "request.outrun or not in_vain",
                "True",
            ),
        ),
        test="test_held_in_vain:test_who_was_waited_for_in_vain_is_waited_for_again_only_when_it_is_outrun",
    ),
    Undone(
        row=178,
        patches=(
            Patch(
                "chaos_protocols.membership.recovering:Recovering.agreed",
                "isinstance(command, SetRestorePoint)",
                "False",
            ),
        ),
        test="test_recovering:test_it_is_carried_out_by_an_entry_and_not_asked_again_whatever_comes_of_the_answer",
    ),
    Undone(
        row=179,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint.ordered",
                "of round {request.round} of",
                "of round {roster.resolved_round} of",
            ),
        ),
        test="test_operators_word:test_an_operator_hears_which_state_he_has_chosen_though_rounds_were_resolved_since",
    ),
    Undone(
        row=180,
        patches=(
            Patch(
                "chaos_protocols.membership.recovering:Recovering.ask",
                "no scheduler has answered: whether it is carried out is not known here; see chaosd status",
                "no scheduler has carried it out; see chaosd status for what is missing",
            ),
        ),
        test="test_recovering:test_a_user_does_not_wait_for_ever_for_a_scheduler",
    ),
    Undone(
        row=203,
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
        row=203,
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
        row=204,
        patches=(Patch("chaos_protocols.membership.catch_up:CatchUp.promoted", " or not command.views", ""),),
        test="test_made_up:test_a_promotion_that_names_no_round_is_waited_for_by_nobody",
    ),
    Undone(
        row=204,
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
        row=201,
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
        row=202,
        patches=(Patch("chaos_protocols.site:SiteMachine.propose", "self.replica.unfit(data)", '""'),),
        test="test_long_commands:test_a_change_that_no_site_could_read_is_not_proposed_and_ends_no_scheduler",
    ),
    Undone(
        row=202,
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
        row=200,
        patches=(Patch("chaos_protocols.links.network:Network._forget_shown", "shown.pop(site, None)", "pass"),),
        test="test_open_admission:test_the_start_and_the_key_that_it_showed_are_forgotten_with_it",
    ),
    Undone(
        row=199,
        patches=(Patch("chaos_protocols.scheduler.reports:Reports.ending_sites", "of_members", "told_by_members"),),
        test="test_leaver_with_the_state:test_who_has_just_lost_the_state_at_the_scheduler_is_none_that_ends",
    ),
    Undone(
        row=196,
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
        row=196,
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
        row=197,
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
        row=198,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.proof:_votes",
                "core.ballots.values()",
                "core.ballots[voter] for voter in sorted(core.ballots)",
            ),
        ),
        test="test_mandates:test_a_leader_shows_the_votes_that_elected_it_however_many_have_confirmed_it_since",
    ),
)
