"""Rows 31 and later of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import WAITS_ALONE, WAITS_FOR_EVER, WITHOUT_MIRRORS, Undone

SETTLING = "test_settling"
OUTSIDERS = "test_outsiders"
SPOKE = "chaos_protocols.adopting:spoke_lately"

LATE = (
    Undone(
        row=31,
        patches=(
            Patch(
                "chaos_protocols.requests:leave_requested", "if _admission_runs(scheduler, site) or (", "if False and ("
            ),
            Patch(
                "chaos_protocols.standing:Standing.leave_requested",
                "if self.alone() or not (self.takes_part() or self.join_asked):",
                "if self.alone() or not self.takes_part():",
            ),
        ),
        stories=("87",),
    ),
    Undone(
        row=32,
        patches=(
            Patch(
                "chaos_protocols.requests:_judge_join",
                'if (gone is not None and gone.cause == "left") or request.incarnation <=',
                "if False and request.incarnation <=",
            ),
        ),
        stories=("100",),
        test="test_found_defects_of_states:test_request_to_join_of_a_start_that_has_left_is_not_granted",
    ),
    Undone(
        row=33,
        patches=(Patch("chaos_protocols.rounds:RoundMachine._pump", "if self.worker_round < self.done:", "if False:"),),
        stories=("120",),
        test="test_found_defects_of_states:test_worker_that_loads_a_state_behind_what_was_delivered_takes_another",
    ),
    Undone(
        row=34,
        patches=(Patch("chaos_protocols.succession:bridge", "if not untried:", "if not untried or leaving.bridged:"),),
        stories=("86",),
    ),
    Undone(
        row=35,
        patches=(
            Patch("chaos_protocols.asking:give_up_the_answer", "since_s = standing.unknown_since_s", "since_s = None"),
            WAITS_FOR_EVER,
        ),
        stories=("106",),
        test=f"{OUTSIDERS}:test_a_leaver_without_a_scheduler_goes_when_it_was_told_long_enough_that_it_is_out",
    ),
    Undone(
        row=36,
        patches=(Patch("chaos_protocols.proposals:remove_site", "or not whole or counts)", "or not whole)"),),
        stories=("94",),
        test="test_proposals:test_a_learner_that_was_promoted_since_its_loss_was_seen_is_settled_without",
    ),
    Undone(
        row=37,
        patches=(
            Patch(
                "chaos_protocols.reconcile:settle",
                "if laggards and others:",
                "if False:",
            ),
        ),
        stories=("95",),
        test=f"{SETTLING}:test_a_round_that_only_a_learner_holds_is_not_what_the_run_goes_on_from",
    ),
    Undone(
        row=38,
        patches=(
            Patch("chaos_protocols.wanted_links:WantedLinks._let_go", "if up and neighbour is not None:", "if False:"),
        ),
        stories=("107",),
        test="test_standing:test_a_new_link_is_dialled_and_a_removed_one_closed_when_no_round_needs_it",
    ),
    Undone(
        row=39,
        patches=(
            Patch(
                "chaos_protocols.standing:Standing.alone",
                "known <= {machine.site} and (self.in_roster or not self.join_asked)",
                "known <= {machine.site}",
            ),
        ),
        stories=("93",),
    ),
    Undone(
        row=40,
        patches=(
            Patch(
                "chaos_protocols.reconcile:settle",
                "any(roster.counts(site, furthest + 1) for",
                "set(holders) - set(roster.learner_ids()) and any(True for",
            ),
        ),
        stories=("98",),
        test=f"{SETTLING}:test_a_member_that_has_not_reached_its_first_round_is_no_measure_for_the_run",
    ),
    Undone(
        row=41,
        patches=(  # in the story it is alone, too: row 46 alone would let it go on
            Patch("chaos_protocols.roster:Roster.counts", "site in (begun", "bool(begun) and site in (begun"),
            WAITS_ALONE,
        ),
        stories=("96",),
        test=f"{SETTLING}:test_a_member_that_lacks_the_settled_round_alone_is_a_measure_when_its_holder_dies",
    ),
    Undone(
        row=42,
        patches=(Patch("chaos_protocols.reconcile:settle", "default=known", "default=roster.settled_round"),),
        stories=("99",),
        test=f"{SETTLING}:test_where_nobody_has_a_result_or_a_state_the_newest_round_that_anybody_knows_stands",
    ),
    Undone(
        row=43,
        patches=(
            Patch(SPOKE, "return now_s <= heard_s + scheduler.host.settings.failure_timeout_s", "return True"),
            WITHOUT_MIRRORS,
        ),
        stories=("110",),
        test="test_found_defects:test_what_a_member_said_of_its_worker_before_this_site_stood_still_is_no_evidence",
    ),
    Undone(
        row=44,
        patches=(
            Patch(
                "chaos_protocols.dispatch:_received",
                "if ours.source != neighbour and type(ours.message) in OF_THE_LINK:",
                "if False:",
            ),
        ),
        stories=("121",),
        test="test_outsiders:test_an_old_heartbeat_that_a_third_site_brings_does_not_keep_a_silent_link_up",
    ),
    Undone(
        row=45,
        patches=(
            Patch("chaos_protocols.reconcile:find_progress", "if stalled is not None:", "if idle:"),
            Patch("chaos_protocols.reconcile:find_progress", "stalled - 1", "host.done_round"),
        ),
        stories=("114",),
        test="test_scheduler_looks:test_a_leaver_is_not_let_go_before_a_round_that_contributions_are_on_the_way_for",
    ),
    Undone(
        row=46,
        patches=(WAITS_ALONE,),
        stories=("123",),
        test=f"{SETTLING}:test_the_last_site_of_a_run_goes_on_though_rounds_may_have_been_done_without_it",
    ),
    Undone(
        row=47,
        patches=(
            Patch(
                "chaos_protocols.requests:leave_requested",
                "scheduler.turned_back[site] = request.incarnation",
                "if gone is None: scheduler.turned_back[site] = request.incarnation",
            ),
        ),
        stories=("113",),
        test="test_found_defects_of_states:test_request_to_join_of_a_removed_start_that_then_left_is_not_granted",
    ),
    Undone(
        row=48,
        patches=(Patch("chaos_protocols.asking:beat", "give_up_listening(standing)", "pass"),),
        stories=("115",),
        test="test_rounds_of_a_site:test_a_listener_whose_parent_has_left_gives_its_state_up_and_holds_nobody_up",
    ),
    Undone(
        row=49,
        patches=(Patch("chaos_protocols.routing:OverlayView.silent", "return (self", "return False and (self"),),
        stories=("117",),
    ),
    Undone(
        row=50,
        patches=(WITHOUT_MIRRORS,),
        stories=("118",),
    ),
    Undone(
        row=51,
        patches=(
            Patch(
                "chaos_protocols.reconcile:find_failures",
                "if not ended.intersection(key)",
                "",
            ),
        ),
        stories=("119",),
    ),
    Undone(
        row=52,
        patches=(Patch("chaos_protocols.asking:give_up_the_answer", " and not last)", ")"),),
        stories=("124",),
        test="test_scheduler_role:test_the_last_member_leaves_unless_its_state_is_on_the_way_to_a_learner",
    ),
    Undone(
        row=53,
        patches=(WAITS_FOR_EVER,),
        stories=("125",),
        test="test_scheduler_role:test_a_leaver_for_which_nothing_can_be_agreed_goes_after_a_while",
    ),
    Undone(
        row=54,
        patches=(Patch("chaos_protocols.reconcile:settle", "+ 1) for site in held)", "+ 1) for site in holders)"),),
        stories=("128",),
        test=f"{SETTLING}:test_a_laggard_holds_the_newest_round_if_another_one_that_counts_has_less",
    ),
    Undone(
        row=55,
        patches=(Patch("chaos_protocols.asking:give_up_the_answer", "last = leads and", "last ="),),
        stories=("127",),
        test="test_scheduler_role:test_a_restarted_site_is_not_the_last_member_because_its_old_roster_says_so",
    ),
    Undone(
        row=56,
        patches=(Patch("chaos_protocols.adopting:choose", "if _reads_its_checkpoint(scheduler, now_s):", "if False:"),),
        stories=("126",),
        test="test_adopting:test_nobody_else_is_taken_over_while_a_site_reads_its_checkpoint",
    ),
    Undone(
        row=57,
        patches=(Patch("chaos_protocols.succession:make_way", "if not candidates:", "if True:"),),
        stories=("129",),
        test=f"{SETTLING}:test_a_laggard_that_schedules_gives_the_role_to_a_member_that_can_let_it_go",
    ),
    Undone(
        row=58,
        patches=(
            Patch(
                "chaos_protocols.standing:Standing._begin_if_new",
                "and self.transfer_bytes < self.transfer.state_bytes and not for_us",
                "and False",
            ),
        ),
        test="test_standing:test_a_transfer_that_is_no_longer_agreed_is_ended_and_the_state_asked_for_at_once",
    ),
)
