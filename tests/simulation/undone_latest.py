"""Rows 72 to 102 of docs/found-by-simulation.md, see `undone`."""

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
    Undone(
        row=75,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_offers:RestoreOffers.outside",
                "request.answered_in == facts.term",
                "True",
            ),
        ),
        test="test_awaited:test_what_a_site_asked_before_it_was_let_in_says_nothing_when_it_comes_again",
    ),
    Undone(
        row=76,
        patches=(
            Patch(
                "chaos_protocols.state.snapshot_source:SnapshotSource.state_lost",
                "if due is not None:",
                "if False:",
            ),
        ),
        test="test_worker_region:test_a_source_that_loses_the_state_before_it_is_copied_says_that_it_is_gone",
    ),
    Undone(
        row=77,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.named",
                "if self._hint_by != site else None",
                "",
            ),
        ),
        test="test_belief:test_a_neighbour_that_was_started_again_with_an_older_roster_takes_its_former_word_back",
    ),
    Undone(
        row=78,
        patches=(
            Patch(
                "chaos_protocols.membership.leaving:Leaving._has_nobody_to_ask",
                "self._joining.asked or self._replica.roster.record(self._replica.site) is not None",
                "self._joining.asked",
            ),
        ),
        test="test_leaving:test_a_site_that_was_in_the_run_before_its_restart_asks_to_leave",
    ),
    Undone(
        row=79,
        patches=(
            Patch(
                "chaos_protocols.membership.participation:Participation._look_for_a_way_back",
                "apart = in_roster and self.client.is_apart",
                "apart = False",
            ),
        ),
        test="test_outsiders:test_a_site_that_hears_its_leader_by_way_of_outsiders_alone_dials_the_sites_of_the_run",
    ),
    Undone(
        row=80,
        patches=(
            Patch(
                "chaos_protocols.membership.catch_up:CatchUp.promoted",
                "outbox.facts.site and self._rounds.worker_round is not None",
                "outbox.facts.site",
            ),
        ),
        test="test_catch_up:test_no_round_waits_for_a_state_that_was_lost_before_the_promotion_was_agreed",
    ),
    Undone(
        row=81,
        patches=(
            Patch(
                "chaos_protocols.scheduler.waits:WaitsWatch._note_waits",
                "site in counting and _is_missing(report, newest)",
                "_is_missing(report, newest)",
            ),
        ),
        test="test_waits:test_a_member_that_counts_from_a_later_round_on_is_not_waited_for",
    ),
    Undone(
        row=82,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.is_lost",
                "since_s = replica.raft.leader_due_s",
                "pass",
            ),
            Patch(
                "chaos_protocols.agreement.replica:RosterReplica.role_changed",
                "min(now_s, self.raft.leader_due_s) if silent else now_s",
                "now_s",
            ),
        ),
        test="test_pause:test_a_member_says_in_bounded_time_that_its_scheduler_is_silent_whatever_time_it_has_drawn",
    ),
    Undone(
        row=83,
        patches=(
            Patch(
                "chaos_protocols.rounds.machine:RoundMachine._discard_after",
                "return [VoidResults(after_round=done)]",
                "return [VoidResults(after_round=done)] if self.completed_round > done else []",
            ),
        ),
        test="test_far_behind:test_who_begins_after_a_round_is_told_to_owe_nothing_though_it_counted_that_round",
    ),
    Undone(
        row=84,
        patches=(
            Patch(
                "chaos_protocols.agreement.replica:RosterReplica.__init__",
                "self._tell_rules(last_known.run_id, roster)",
                "self._tell_rules(last_known.run_id, last_known)",
            ),
        ),
        test="test_rules:test_an_entry_that_the_others_may_never_have_had_asks_nobody_for_votes",
    ),
    Undone(
        row=85,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.may_lead",
                "self._replica.raft.voters_in_force",
                "self._replica.configuration.voters",
            ),
        ),
        test="test_belief:test_a_change_that_takes_a_vote_takes_it_once_it_is_agreed",
    ),
    Undone(
        row=86,
        patches=(
            Patch(
                "chaos_protocols.membership.catch_up:CatchUp.report",
                "self._fetch.plan or (membership.awaited_transfer() if is_over else None)",
                "self._fetch.plan",
            ),
        ),
        test="test_parts:test_a_transfer_that_was_agreed_ends_when_the_worker_got_its_state_from_memory_meanwhile",
    ),
    Undone(
        row=87,
        patches=(
            Patch(
                "chaos_protocols.state.fetch:StateFetch._has_gone",
                "or record.incarnation != self._served_by.get(source)",
                "",
            ),
        ),
        test="test_missing_state:test_a_transfer_ends_when_its_sources_were_started_again",
    ),
    Undone(
        row=88,
        patches=(
            Patch(
                "chaos_protocols.links.naming:RunNaming.may_go",
                "self._versions.neighbour_lacks",
                "self._versions.lacks",
            ),
            Patch(
                "chaos_protocols.links.site_versions:SiteVersions.heard",
                "met[0] == incarnation",
                "False",
            ),
        ),
        test="test_naming:test_what_a_third_site_reports_of_a_neighbour_does_not_outweigh_its_handshake",
    ),
    Undone(
        row=89,
        patches=(
            Patch(
                "chaos_protocols.links.naming:RunNaming.of_word_to",
                "destination in self._readers or",
                "",
            ),
        ),
        test="test_naming:test_who_asks_after_an_upgrade_is_answered_in_words_that_it_takes",
    ),
    Undone(
        row=90,
        patches=(
            Patch(
                "chaos_protocols.links.site_versions:SiteVersions.of_start",
                "met = self._met.get(site)",
                "return self.of(site)\n    met = self._met.get(site)",
            ),
        ),
        test="test_failures:test_a_restarted_site_is_renewed_with_the_version_that_it_says_itself",
    ),
    Undone(
        row=90,
        patches=(
            Patch(
                "chaos_protocols.scheduler.round_resolution:RoundResolution.step",
                "any(restarted(facts, record) is not None for record in roster.sites)",
                "False",
            ),
        ),
        test="test_round_resolution:test_no_round_is_resolved_by_the_word_of_a_start_that_the_roster_does_not_name",
    ),
    Undone(
        row=91,
        patches=(
            Patch(
                "chaos_protocols.links.keys:LinkKeys._forget_start",
                "incarnation <= self._network.incarnations.get(site, 0)",
                "False",
            ),
        ),
        test="test_later_key:test_the_true_site_is_heard_though_a_thief_has_shown_a_later_start",
    ),
    Undone(
        row=92,
        patches=(
            Patch(
                "chaos_protocols.agreement.key_ring:KeyRing.follow",
                "self._signer.owner(one.chain.first) == one.site and self._is_sound(one.chain)",
                "True",
            ),
        ),
        test="test_keys:test_a_chain_that_its_keys_have_not_signed_counts_in_no_roster",
    ),
    Undone(
        row=93,
        patches=(
            Patch(
                "chaos_protocols.rounds.machine:RoundMachine.resolved",
                "self.worker_round > round_number",
                "False",
            ),
        ),
        test="test_resolved_away:test_a_state_of_a_later_round_than_the_one_that_stands_is_fetched_again",
    ),
    Undone(
        row=93,
        patches=(Patch("chaos_protocols.state.fetch:StateFetch.resolved", "self.plan.round > round_number", "False"),),
        test="test_resolved_away:test_a_state_that_is_being_loaded_is_none_of_the_run_where_an_earlier_round_stands",
    ),
    Undone(
        row=94,
        patches=(Patch("chaos_protocols.scheduler.running:RunningNegotiations.may_propose", "not trains or ", ""),),
        test="test_joins_called_off:test_a_joiner_does_not_wait_behind_a_transfer_when_no_member_trains_any_more",
    ),
    Undone(
        row=95,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.has_resigned",
                "beat.scheduler != site",
                "False",
            ),
        ),
        test="test_pause:test_a_member_says_soon_that_its_scheduler_says_itself_that_it_is_none",
    ),
    Undone(
        row=95,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.election:leader_lost",
                "or core.leader_lost_s is not None",
                "",
            ),
        ),
        test="test_pause:test_a_member_says_soon_that_its_scheduler_says_itself_that_it_is_none",
    ),
    Undone(
        row=95,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.has_resigned",
                "beat.scheduler != site",
                "False",
            ),
        ),
        test="test_belief:test_a_voter_whose_leader_says_itself_that_it_is_none_asks_for_votes_at_once",
    ),
    Undone(
        row=95,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.scheduler",
                "self._hint if self._hint != replica.site else None",
                "self._hint",
            ),
        ),
        test="test_belief:test_a_site_that_does_not_lead_names_itself_to_nobody_though_others_still_do",
    ),
    Undone(
        row=96,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.is_trusted",
                "source == self.scheduler",
                "source == self._hint and (self._replica.raft.leader is None or not self._membership.in_roster)",
            ),
        ),
        test="test_belief:test_whom_a_site_follows_it_goes_on_believing_before_the_roster_with_him_has_come",
    ),
    Undone(
        row=97,
        patches=(Patch("chaos_protocols.agreement.raft.election:denied", "if not core.proof_needed", "if True"),),
        test="test_proofs:test_a_leader_whose_voter_has_voted_for_another_is_elected_anew",
    ),
    Undone(
        row=98,
        patches=(
            Patch(
                "chaos_protocols.links.router:Router._is_new", "return self._near.is_new", "return self._guard.is_new"
            ),
        ),
        test="test_router:test_what_others_hand_on_in_a_neighbours_name_never_shuts_out_what_it_says_over_its_own_link",
    ),
    Undone(
        row=99,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._inside",
                "None if report is None else self._unoffered(record, report.checkpoint, best)",
                "None",
            ),
        ),
        test="test_restore_point:test_a_checkpoint_that_is_whole_since_its_site_was_heard_is_waited_for",
    ),
    Undone(
        row=100,
        patches=(
            Patch("chaos_protocols.state.snapshot_source:SnapshotSource.follow", "self._lacks_the_state(plan)", "pass"),
        ),
        test="test_snapshot_source:test_a_source_that_lost_the_state_before_it_heard_of_the_plan_says_that_it_is_gone",
    ),
    Undone(
        row=101,
        patches=(
            Patch(
                "chaos_protocols.rounds.reached:ReachedRound.held", "worker_round == self.noted.told_round > 0", "False"
            ),
        ),
        test="test_lineage:"
        "test_a_state_that_was_loaded_when_no_daemon_heard_it_any_more_is_of_the_history_that_it_came_from",
    ),
    Undone(
        row=102,
        patches=(
            Patch(
                "chaos_protocols.scheduler.waits:WaitsWatch._note_waits",
                "self._reports.of_leavers(counting)",
                "dict[SiteId, SiteStatus]()",
            ),
        ),
        test="test_waits:test_a_leaver_is_waited_for_in_its_last_round_though_it_is_out_of_the_roster",
    ),
)
