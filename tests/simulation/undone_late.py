"""Rows 31 to 70 of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import ASKS_FOR_EVER, LEAVING, WAITS_ALONE, WAITS_FOR_EVER, WITHOUT_MIRRORS, Undone

RESOLUTION = "test_round_resolution"
OUTSIDERS = "test_outsiders"
CANDIDATES = "test_restore_candidates"
SCHEDULER = "chaos_protocols.scheduler"
ADMISSION = f"{SCHEDULER}.admission:Admission"
OUTCOME = f"{SCHEDULER}.round_resolution:outcome_of"
PROGRESS = f"{SCHEDULER}.progress:ProgressWatch"
WAITS = f"{SCHEDULER}.waits:WaitsWatch"

LATE = (
    Undone(
        row=31,
        patches=(
            Patch(f"{ADMISSION}._leaves_from_outside", "if self._admission_runs(site) or (", "if False and ("),
            Patch(
                f"{LEAVING}._has_nobody_to_ask",
                "return self.is_alone or not (self._membership.takes_part or known)",
                "return self.is_alone or not self._membership.takes_part",
            ),
        ),
        stories=("87",),
    ),
    Undone(
        row=32,
        patches=(
            Patch(
                f"{ADMISSION}._negotiated",
                'if (gone is not None and gone.cause == "left") or self._turned_back.has(',
                "if False and self._turned_back.has(",
            ),
        ),
        test="test_admission:test_request_to_join_of_a_start_that_has_left_is_not_granted",
    ),
    Undone(
        row=33,
        patches=(
            Patch(
                "chaos_protocols.rounds.delivery:ResultDelivery.next", "if self.worker_round < completed:", "if False:"
            ),
        ),
        test="test_far_behind:test_worker_that_loads_a_state_behind_what_was_delivered_takes_another",
    ),
    Undone(
        row=34,
        patches=(
            Patch(
                f"{SCHEDULER}.negotiation.scale_in:ScaleIn.next_bridge",
                "if not untried:",
                "if not untried or self._bridged:",
            ),
        ),
        stories=("86",),
    ),
    Undone(
        row=35,
        patches=(
            Patch(f"{LEAVING}._was_removed", "since_s = self._unknown_since_s", "since_s = None"),
            WAITS_FOR_EVER,
        ),
        test=f"{OUTSIDERS}:test_a_leaver_without_a_scheduler_goes_when_it_was_told_long_enough_that_it_is_out",
    ),
    Undone(
        row=36,
        patches=(Patch(f"{SCHEDULER}.removals:removal_of", "or not whole or counts)", "or not whole)"),),
        stories=("94",),
        test="test_proposals:test_a_learner_that_was_promoted_since_its_loss_was_seen_is_resolved_without",
    ),
    Undone(
        row=37,
        patches=(
            Patch(
                f"{SCHEDULER}.round_resolution:RoundResolution._resolve",
                "if outcome.pending and others:",
                "if False:",
            ),
        ),
        stories=("95",),
        test=f"{RESOLUTION}:test_a_round_that_only_a_learner_holds_is_not_what_the_run_goes_on_from",
    ),
    Undone(
        row=38,
        patches=(
            Patch(
                "chaos_protocols.links.desired:DesiredLinks._let_go", "if up and neighbour is not None:", "if False:"
            ),
            ASKS_FOR_EVER,
        ),
        stories=("107",),
        test="test_participation:test_a_new_link_is_dialled_and_a_removed_one_closed_when_no_round_needs_it",
    ),
    Undone(
        row=39,
        patches=(
            Patch(
                f"{LEAVING}.is_alone",
                "known <= {replica.site} and (self._membership.in_roster or not self._joining.asked)",
                "known <= {replica.site}",
            ),
        ),
        stories=("93",),
    ),
    Undone(
        row=40,
        patches=(
            Patch(
                OUTCOME,
                "any(roster.counts(site, furthest + 1) for",
                "set(holders) - set(roster.learner_ids()) and any(True for",
            ),
        ),
        stories=("98",),
        test=f"{RESOLUTION}:test_a_member_that_has_not_reached_its_first_round_is_no_measure_for_the_run",
    ),
    Undone(
        row=41,
        patches=(  # in the story it is alone, too: row 46 alone would let it go on
            Patch("chaos_protocols.agreement.roster:Roster.counts", "site in (begun", "bool(begun) and site in (begun"),
            WAITS_ALONE,
        ),
        stories=("96",),
        test=f"{RESOLUTION}:test_a_member_that_lacks_the_resolved_round_alone_is_a_measure_when_its_holder_dies",
    ),
    Undone(
        row=42,
        patches=(Patch(OUTCOME, "default=known", "default=roster.resolved_round"),),
        stories=("99",),
        test=f"{RESOLUTION}:test_where_nobody_has_a_result_or_a_state_the_newest_round_that_anybody_knows_stands",
    ),
    Undone(
        row=43,
        patches=(
            Patch(
                f"{SCHEDULER}.reports:Reports.spoke_lately",
                "return now_s <= heard_s + facts.settings.failure_timeout_s",
                "return True",
            ),
            WITHOUT_MIRRORS,
        ),
        stories=("110",),
        test=f"{CANDIDATES}:test_what_a_member_said_of_its_worker_before_this_site_stood_still_is_no_evidence",
    ),
    Undone(
        row=44,
        patches=(
            Patch(
                "chaos_protocols.inbound:Inbound.received",
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
            Patch(
                f"{PROGRESS}._empty_round", "self._reports.empty_round() if idle", "self._facts.done_round + 1 if idle"
            ),
        ),
        stories=("114",),
        test="test_progress:test_a_leaver_is_not_let_go_before_a_round_that_contributions_are_on_the_way_for",
    ),
    Undone(
        row=46,
        patches=(WAITS_ALONE,),
        stories=("123",),
        test=f"{RESOLUTION}:test_the_last_site_of_a_run_goes_on_though_rounds_may_have_been_done_without_it",
    ),
    Undone(
        row=47,
        patches=(
            Patch(
                f"{ADMISSION}._leaves_from_outside",
                "self._turned_back.note(site,",
                "if gone is None: self._turned_back.note(site,",
            ),
        ),
        test="test_admission:test_request_to_join_of_a_removed_start_that_then_left_is_not_granted",
    ),
    Undone(
        row=48,
        patches=(Patch("chaos_protocols.rounds.lost_results:LostResults.look", "self.give_up_listening()", "pass"),),
        stories=("115",),
        test="test_rounds_of_a_site:test_a_listener_whose_parent_has_left_gives_its_state_up_and_holds_nobody_up",
    ),
    Undone(
        row=49,
        patches=(
            Patch("chaos_protocols.links.link_state:LinkStateTable.silent", "return (self", "return False and (self"),
            ASKS_FOR_EVER,
        ),
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
                f"{SCHEDULER}.failures:FailureDetector._lost_links",
                "if not ended.intersection(key)",
                "",
            ),
        ),
        stories=("119",),
    ),
    Undone(
        row=52,
        patches=(Patch(f"{LEAVING}.give_up", " and not self._is_last(role)", ""),),
        stories=("124",),
        test="test_leaving:test_the_last_member_leaves_unless_its_state_is_on_the_way_to_a_learner",
    ),
    Undone(
        row=53,
        patches=(WAITS_FOR_EVER,),
        stories=("125",),
        test="test_leaving:test_a_leaver_for_which_nothing_can_be_agreed_goes_after_a_while",
    ),
    Undone(
        row=54,
        patches=(Patch(OUTCOME, "+ 1) for site in held)", "+ 1) for site in holders)"),),
        stories=("128",),
        test=f"{RESOLUTION}:test_a_pending_member_holds_the_newest_round_if_another_one_that_counts_has_less",
    ),
    Undone(
        row=55,
        patches=(Patch(f"{LEAVING}._is_last", "role.at_work and", ""),),
        stories=("127",),
        test="test_leaving:test_a_restarted_site_is_not_the_last_member_because_its_old_roster_says_so",
    ),
    Undone(
        row=56,
        patches=(
            Patch(
                f"{SCHEDULER}.restore_point:RestorePoint._choose", "if self._reads_its_checkpoint(now_s):", "if False:"
            ),
        ),
        test="test_restore_point:test_nobody_else_is_taken_over_while_a_site_reads_its_checkpoint",
    ),
    Undone(
        row=57,
        patches=(Patch(f"{SCHEDULER}.voters:transfer_leadership", "if not candidates:", "if True:"),),
        stories=("129",),
        test=f"{RESOLUTION}:test_a_pending_member_that_schedules_gives_the_role_to_a_member_that_can_let_it_go",
    ),
    Undone(
        row=58,
        patches=(
            Patch(
                "chaos_protocols.membership.participation:Participation.roster_changed",
                "if state.fetch.is_called_off(roster):",
                "if False:",
            ),
        ),
        test="test_participation:test_a_transfer_that_is_no_longer_agreed_is_ended_and_the_state_asked_for_at_once",
    ),
    Undone(
        row=59,
        patches=(
            Patch(
                "chaos_protocols.membership.waits:Waits.waited_for",
                "self._rounds.known_round >= message.round",
                "self._rounds.completed_round >= message.round",
            ),
        ),
        test="test_absence:test_a_joiner_says_whom_the_round_of_its_snapshot_waits_for",
    ),
    Undone(
        row=60,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.is_lost",
                "since_s = replica.raft.leader_lost_s",
                "since_s = None",
            ),
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.is_lost",
                "(since_s, self._apart_s)",
                "(since_s,)",
            ),
        ),
        test="test_pause:test_a_member_without_a_vote_says_soon_that_no_way_leads_to_its_scheduler",
    ),
    Undone(
        row=61,
        patches=(Patch(f"{WAITS}._behind_of", "if tag is None or self._nobody_gave:", "if True:"),),
        test="test_waits:test_a_member_whose_daemon_has_not_the_rosters_newest_entry_is_waited_for_with_that_reason",
    ),
    Undone(
        row=62,
        patches=(
            Patch(
                "chaos_protocols.links.silence:LinkWatch.silence",
                "min(silent_s, now_s - self.received_s)",
                "min(silent_s, now_s - self.bulk_s)",
            ),
        ),
        test="test_liveness:test_bytes_that_the_system_of_a_stopped_daemon_acknowledges_do_not_excuse_its_silence",
    ),
    Undone(
        row=63,
        patches=(Patch(f"{SCHEDULER}.restore_awaited:AwaitedSites._outside", "if offered is not None:", "if False:"),),
        test=(
            "test_awaited:test_a_site_that_came_back_with_nothing_newer_is_not_waited_for_though_no_link_leads_to_it"
        ),
    ),
    Undone(
        row=64,
        patches=(
            Patch(
                "chaos_protocols.state.worker_session:WorkerSession.gives_region",
                "return self.region.free",
                "return True",
            ),
        ),
        stories=("120",),
        test="test_worker_region:test_no_transfer_writes_into_a_region_from_which_the_worker_has_yet_to_load",
    ),
    Undone(
        row=65,
        patches=(
            Patch("chaos_protocols.state.machine:WorkerState._start_fetch", "self.memory.yield_region()", "pass"),
        ),
        test="test_worker_region:test_a_copy_of_which_a_transfer_has_overwritten_the_source_is_of_no_use",
    ),
    Undone(
        row=66,
        patches=(
            Patch(
                "chaos_protocols.state.machine:WorkerState.worker_loaded",
                "self._reached.holds(loaded.lineage, round_number, self._membership.roster)",
                "pass",
            ),
        ),
        test="test_lineage:test_a_state_in_which_no_round_was_done_since_is_offered_as_one_of_its_own_history",
    ),
    Undone(
        row=67,
        patches=(Patch(f"{WAITS}._stuck", "if report.open == tag and report.unacknowledged_by:", "if False:"),),
        test="test_waits:test_a_member_whose_bytes_do_not_arrive_is_waited_for_with_where_they_should",
    ),
    Undone(
        row=68,
        patches=(
            Patch(
                "chaos_protocols.state.machine:WorkerState._go_on_from",
                "settled = session.present and not rounds.delivery.unanswered",
                "settled = session.present",
            ),
        ),
        test="test_missing_state:test_a_worker_that_has_yet_to_apply_a_result_is_not_what_the_run_goes_on_from",
    ),
    Undone(
        row=69,
        patches=(
            Patch(
                "chaos_protocols.membership.pause:Pause.why",
                "if promised := self._why_not_yet():",
                "if promised := None:",
            ),
        ),
        test=(
            "test_missing_state:"
            "test_a_site_whose_sources_still_compute_says_for_whom_it_waits_until_the_first_bytes_come"
        ),
    ),
    Undone(
        row=70,
        patches=(
            Patch(
                "chaos_protocols.membership.pause:Pause._why_no_state",
                "for site in network.reachable()",
                "for site in network.links.up_sites()",
            ),
        ),
        test=(
            "test_missing_state:test_a_state_is_not_called_lost_while_a_site_trains_that_no_link_of_this_site_leads_to"
        ),
    ),
    Undone(
        row=71,
        patches=(Patch("chaos_protocols.membership.waits:Waits._fresh", "stale or self._client.is_lost", "stale"),),
        test="test_absence:test_the_words_of_a_scheduler_that_is_lost_are_no_reason_any_more",
    ),
)
