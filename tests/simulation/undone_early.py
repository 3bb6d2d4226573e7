"""Rows 1 to 30 of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import ASKS_FOR_EVER, PARTICIPATION, WAITS_FOR_EVER, Undone

SCHEDULER = "chaos_protocols.scheduler"
FAILURES = f"{SCHEDULER}.failures:FailureDetector"
OUTCOME = f"{SCHEDULER}.round_resolution:outcome_of"
PROGRESS = f"{SCHEDULER}.progress:ProgressWatch"
REPORTS = f"{SCHEDULER}.reports:Reports"

EARLY = (
    Undone(
        row=1,
        patches=(Patch(OUTCOME, "if answer.digest or answer.has_state", ""),),
        stories=("61", "01"),
    ),
    Undone(
        row=2,
        patches=(
            Patch(
                "chaos_protocols.site:SiteMachine._install",
                "old, rekeyed = self.replica.install(roster)",
                "old, rekeyed = self.replica.install(roster); self._lift_fence()",
            ),
        ),
        test="test_replica:test_what_was_held_back_for_a_planned_change_is_given_to_its_views",
    ),
    Undone(
        row=3,
        patches=(
            Patch(
                "chaos_protocols.rounds.machine:RoundMachine._catch_up",
                'self.completed_round, self.digest = resolved, ""  # on in standby: no round waits for it',
                "pass",
            ),
            Patch(
                "chaos_protocols.rounds.machine:RoundMachine._catch_up",
                "return effects + self.advance()",
                "return effects",
            ),
        ),
        test="test_round_machine:test_further_behind_it_goes_on_in_standby_and_asks_for_the_state",
    ),
    Undone(
        row=4,
        patches=(
            Patch(
                "chaos_protocols.agreement.views:connected_with",
                "near = component_of(origin, {*members, origin}, keys)",
                "near = component_of(origin, {*members, *learners, origin}, keys)",
            ),
        ),
        stories=("90",),
    ),
    Undone(
        row=5,
        patches=(
            Patch(
                "chaos_protocols.agreement.replica:RosterReplica.is_newest",
                "return self.raft.term_at(self.raft.commit_index) == self.raft.term",
                "return True",
            ),
        ),
        stories=("88",),
    ),
    Undone(
        row=6,
        patches=(
            Patch(
                f"{SCHEDULER}.removals:removal_of",
                "resolve = asked.resolve or (not asked.graceful and (roster.resolving or not whole or counts))",
                "resolve = asked.resolve",
            ),
        ),
        stories=("97",),
        test="test_proposals:test_a_failure_that_splits_the_overlay_is_resolved_over_what_is_left",
    ),
    Undone(
        row=8,
        patches=(
            Patch(
                f"{SCHEDULER}.proposals:release_site",
                "if situation.roster.record(site) is not None:",
                "if False:",
            ),
        ),
        test="test_proposals:test_who_has_joined_again_is_not_removed_for_its_former_life",
    ),
    Undone(
        row=7,
        patches=(Patch(OUTCOME, "or answer.has_state", ""),),
        test="test_round_status:test_state_of_a_restored_member_counts_like_a_result",
    ),
    Undone(
        row=9,
        patches=(
            Patch(f"{PARTICIPATION}.heard", "elif membership.leaving:", "elif False:"),
            Patch(f"{PARTICIPATION}.heard", " and self.client.may_be_out(site)", ""),
        ),
        stories=("84",),
    ),
    Undone(
        row=10,
        patches=(
            Patch(
                "chaos_protocols.membership.leaving:Leaving.finish_if_done",
                "if outbox.awake_s >= self._released_s + outbox.settings.negotiation_timeout_s:",
                "if False:",
            ),
            WAITS_FOR_EVER,
        ),
        stories=("104",),
        test="test_leaving:test_a_leaver_whose_last_round_was_resolved_without_it_goes_after_a_bounded_time",
    ),
    Undone(
        row=11,
        patches=(
            Patch(
                f"{PROGRESS}._leaver",
                "if stands_still and not roster.resolving:",
                "if False:",
            ),
        ),
        test="test_progress:test_a_leaver_whose_last_rounds_do_not_end_is_resolved_away_and_still_called_left",
    ),
    Undone(
        row=12,
        patches=(
            Patch(
                f"{PROGRESS}._transfer",
                "return [Inform(negotiation=transfer.identifier, event=gone)]",
                "return []",
            ),
        ),
        stories=("108",),
        test="test_progress:test_a_transfer_that_the_roster_names_no_more_ends",
    ),
    Undone(
        row=13,
        patches=(
            Patch(
                f"{SCHEDULER}.admission:Admission.caught_up_reported",
                'if not known and record is not None and record.state == "learner":',
                "if False:",
            ),
        ),
        test="test_state_requests:test_a_caught_up_learner_whose_joining_nobody_remembers_is_promoted",
    ),
    Undone(
        row=14,
        patches=(
            Patch(
                f"{PARTICIPATION}._look_for_a_way_back",
                "waits_outside = self.session.present and not in_roster",
                "waits_outside = False",
            ),
        ),
        stories=("91",),
    ),
    Undone(
        row=15,
        patches=(
            Patch("chaos_protocols.links.desired:DesiredLinks.follow", "if site not in self._peers:", "if True:"),
        ),
        stories=("122",),
    ),
    Undone(
        row=16,
        patches=(
            Patch(f"{SCHEDULER}.removals:removal_of", "if gone is not None:", "if False:"),
            Patch(
                f"{SCHEDULER}.running:RunningNegotiations._site_failed",
                'left = record is None and gone is not None and gone.cause == "left"',
                "left = False",
            ),
        ),
        stories=("38",),
    ),
    Undone(
        row=17,
        patches=(
            Patch(
                "chaos_protocols.rounds.machine:RoundMachine._skip_what_is_over",
                "if roster.views and self.completed_round + 1 < roster.views[0].first_round:",
                "if False:",
            ),
        ),
        stories=("116",),
        test="test_far_behind:test_a_member_that_is_too_far_behind_gives_its_state_up_and_goes_on_in_standby",
    ),
    Undone(
        row=18,
        patches=(
            Patch(
                "chaos_protocols.links.link_state:LinkStateTable._judge",
                "up = envelope.message.up and envelope.incarnation == self._incarnations[key[0]]",
                "up = envelope.message.up",
            ),
            Patch(
                "chaos_protocols.links.link_state:LinkStateTable.silent", "return (self", "return False and (self"
            ),  # row 49
            ASKS_FOR_EVER,
        ),
        stories=("40", "69"),
    ),
    Undone(
        row=19,
        patches=(Patch("chaos_protocols.rounds.machine:RoundMachine.advance", "if not self.takes_part or", "if"),),
        stories=("83",),
    ),
    Undone(
        row=20,
        patches=(Patch(f"{SCHEDULER}.machine:SchedulerMachine.at_work", "and self.host.roster_is_newest()", ""),),
        stories=("88",),
    ),
    Undone(
        row=21,
        patches=(
            Patch(
                f"{SCHEDULER}.negotiation.scale_in:ScaleIn._failed_meanwhile",
                'S.FAILED, "", f"',
                'S.FAILED, "failed", f"',
            ),
        ),
        stories=("85",),
    ),
    Undone(
        row=22,
        patches=(
            Patch(
                f"{REPORTS}.newest_round",
                "max(self._facts.roster.resolved_round, ",
                "max(self._facts.roster.resolved_round, *(one.known_round for one, _ in self._newest.values()), ",
            ),
        ),
        stories=("103",),
        test="test_restore_candidates:test_round_that_only_a_removed_site_has_reported_is_not_waited_for",
    ),
    Undone(
        row=23,
        patches=(Patch(f"{REPORTS}.spoke_lately", " or report.epoch != facts.roster.epoch", ""),),
        test="test_restore_point:test_report_from_before_the_roster_of_now_says_nothing_of_a_worker",
    ),
    Undone(
        row=24,
        patches=(
            Patch(
                f"{PROGRESS}._transfer",
                "now = (report.transfer_bytes, report.worker_round) if report else (0, 0)",
                "now = (report.transfer_bytes, report.done_round) if report else (0, 0)",
            ),
        ),
        stories=("101",),
        test="test_progress:test_transfer_that_hangs_is_given_up_though_the_rounds_of_the_others_go_on",
    ),
    Undone(
        row=25,
        patches=(Patch(f"{SCHEDULER}.voters:VoterChoice.step", "if stranger is not None:", "if False:"),),
        stories=("109",),
        test="test_voters:test_leaver_whose_leave_nobody_remembers_is_released_from_the_agreement",
    ),
    Undone(
        row=26,
        patches=(
            Patch(
                "chaos_protocols.state.fetch:StateFetch.is_new",
                "return plan.transfer != self._tried",
                "return self.plan is None or plan.transfer != self.plan.transfer",
            ),
        ),
        stories=("112",),
        test="test_missing_state:test_plan_that_has_failed_is_not_begun_again_by_the_next_entry",
    ),
    Undone(
        row=27,
        patches=(
            Patch(
                "chaos_protocols.state.machine:WorkerState.worker_loaded",
                "if loaded is None:",
                "if loaded is None or not fetch.is_running(loaded.transfer):",
            ),
        ),
        stories=("102",),
        test="test_missing_state:test_state_that_was_loaded_after_its_transfer_was_given_up_is_offered_all_the_same",
    ),
    Undone(
        row=28,
        patches=(Patch(f"{SCHEDULER}.proposer:Proposer.quorum_in_reach", "return all(", "return True or all("),),
        stories=("65", "69"),
    ),
    Undone(
        row=29,
        patches=(
            Patch(
                f"{FAILURES}._lost_sites",
                "if away and record is None and self._may_have_ended(site, now_s):",
                "if False:",
            ),
        ),
        stories=("86", "114", "119"),
    ),
    Undone(
        row=30,
        patches=(
            Patch(
                f"{PARTICIPATION}._look_for_a_way_back",
                "leaderless = in_roster and self._replica.raft.leader is None",
                "leaderless = False",
            ),
        ),
        stories=("82",),
    ),
)
