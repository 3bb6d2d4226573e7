"""Rows 133 to 162 of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import Undone

PRESENT = (
    Undone(
        row=133,
        patches=(
            Patch(
                "chaos_protocols.state.machine:WorkerState.begin_if_new",
                "membership.is_member and membership.begun and rounds.active",
                "False",
            ),
        ),
        test="test_catch_up:test_a_plan_that_comes_when_the_worker_trains_again_is_not_followed_and_said_to_be_over",
    ),
    Undone(
        row=134,
        patches=(
            Patch(
                "chaos_protocols.state.last_checkpoint:LastCheckpoint.is_over", "self._rounds.own.stop(True)", "pass"
            ),
        ),
        test="test_last_checkpoint:"
        "test_who_goes_gives_nothing_to_a_round_until_its_state_is_written_or_it_stays_after_all",
    ),
    Undone(
        row=135,
        patches=(
            Patch(
                "chaos_protocols.state.last_checkpoint:LastCheckpoint._begun",
                "is_unsure(self._rounds, self._session) and",
                "self._tries < TRIES_MAX and is_unsure(self._rounds, self._session) and",
            ),
        ),
        test="test_last_checkpoint:test_an_update_under_way_when_a_site_goes_is_waited_for_and_what_came_of_it_written",
    ),
    Undone(
        row=136,
        patches=(Patch("chaos_protocols.state.last_checkpoint:LastCheckpoint._begun", "self._fetch.cancel()", "pass"),),
        test="test_last_checkpoint:test_a_state_on_its_way_to_a_site_that_goes_is_fetched_no_further",
    ),
    Undone(
        row=136,
        patches=(
            Patch(
                "chaos_protocols.state.last_checkpoint:LastCheckpoint._begun",
                "or self._restore.region_is_written",
                "",
            ),
        ),
        test="test_last_checkpoint:test_a_state_that_is_being_read_for_the_worker_of_a_site_that_goes_ends_first",
    ),
    Undone(
        row=137,
        patches=(Patch("chaos_protocols.links.keys:LinkKeys.went_down", "not self._is_vouched_for(site)", "False"),),
        test="test_later_key:"
        "test_what_a_thief_has_forged_keeps_words_that_are_handed_on_out_only_as_long_as_he_is_linked",
    ),
    Undone(
        row=138,
        patches=(
            Patch("chaos_protocols.membership.leaving:Leaving._is_last", "and (rounds.active or", "and (True or"),
        ),
        test="test_leaving:test_a_state_of_a_round_that_the_last_member_will_not_do_is_not_on_the_way",
    ),
    Undone(
        row=139,
        patches=(Patch("chaos_protocols.inbound:Inbound.received", "self._is_of_another_start(event)", "False"),),
        test="test_later_key:test_what_a_neighbour_says_as_another_start_than_the_one_that_has_its_link_is_dropped",
    ),
    Undone(
        row=140,
        patches=(
            Patch(
                "chaos_protocols.scheduler.waits:WaitsWatch.look", "BEHIND if site in reports else UNREPORTED", "BEHIND"
            ),
        ),
        test="test_waits:test_a_member_that_has_not_reported_is_waited_for_too",
    ),
    Undone(
        row=141,
        patches=(Patch("chaos_protocols.membership.waits:Waits.waited_for", "view is None or", "True or"),),
        test="test_absence:test_who_is_out_of_the_round_since_is_waited_for_no_more",
    ),
    Undone(
        row=142,
        patches=(
            Patch(
                "chaos_protocols.rounds.reached:ReachedRound.holds",
                "if lineage == roster.restore_epoch and round_number > self.of(roster):",
                "if False:",
            ),
        ),
        test="test_lineage:test_who_was_given_a_state_knows_how_far_the_run_has_come_though_no_round_was_done_there",
    ),
    Undone(
        row=143,
        patches=(
            Patch(
                "chaos_protocols.links.link_state:ReplayGuard.is_outdated",
                "return isinstance(envelope.message, OF_NOW) and envelope.sequence < known.said_of_now",
                "return False",
            ),
        ),
        test="test_link_state:test_an_older_word_of_a_site_on_itself_is_dropped",
    ),
    Undone(
        row=144,
        patches=(
            Patch(
                "chaos_protocols.worker_group.member:RunMember._fallen_behind",
                "self._tell(wire.WorkerResumed())",
                "pass",
            ),
        ),
        test="test_run_world:test_load_costs_no_state_that_other_sites_do_not_have",
    ),
    Undone(
        row=145,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.is_lost",
                "replica.raft.majority_heard_s(outbox.now_s) + outbox.settings.election_timeout_s",
                "None",
            ),
        ),
        test="test_starting_over:"
        "test_one_of_two_voters_that_was_elected_just_before_the_other_was_lost_says_so_and_may_be_recovered",
    ),
    Undone(
        row=146,
        patches=(
            Patch(
                "chaos_protocols.scheduler.waits:WaitsWatch._note_waits",
                "self._since = {site: since_s + now_s - self._looked_s for site, since_s in self._since.items()}",
                "self._since.clear()",
            ),
        ),
        test="test_waits:test_a_round_that_begins_anew_again_and_again_waits_for_the_same_site_and_no_longer",
    ),
    Undone(
        row=147,
        patches=(
            Patch(
                "chaos_protocols.rounds.reached:ReachedRound.outlived_training",
                "self._without <= worker_round + 1",
                "True",
            ),
        ),
        test="test_lineage:test_a_worker_without_which_two_rounds_may_have_been_done_did_not_train_to_the_end",
    ),
    Undone(
        row=148,
        patches=(
            Patch(
                "chaos_protocols.agreement.raft.progress:Progress.rejected",
                "last_index < self.match_index or previous_index == self.match_index",
                "last_index < self.match_index",
            ),
            Patch(
                "chaos_protocols.agreement.raft.progress:Progress.rejected",
                "previous_index < self.match_index or (",
                "previous_index <= self.match_index or (",
            ),
        ),
        test="test_replication:"
        "test_a_follower_that_has_other_entries_in_the_place_of_those_it_acknowledged_is_sent_them_again",
    ),
    Undone(
        row=149,
        patches=(
            Patch(
                "chaos_protocols.membership.own:Membership.takes_part", "self.roster.away(", "self.roster.departure("
            ),
        ),
        test="test_removed_and_left:"
        "test_rounds_of_a_later_start_of_a_site_are_not_the_last_ones_of_a_start_that_went_before",
    ),
    Undone(
        row=150,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.named",
                " and self.is_of_run(other)",
                "",
            ),
        ),
        test="test_belief:test_whom_a_site_named_that_is_no_longer_of_the_run_stands_in_the_way_of_nobodys_word",
    ),
    Undone(
        row=151,
        patches=(
            Patch(
                "chaos_protocols.links.network:Network.name_runs",
                "{naming.shown, *self._naming_runs(lambda _: True)}",
                "self._naming_runs(lambda _: True)",
            ),
        ),
        test="test_naming:test_a_newcomer_names_the_run_that_its_peer_names_which_was_away_when_that_was_agreed",
    ),
    Undone(
        row=152,
        patches=(
            Patch(
                "chaos_protocols.state.restore:StateRestore.abandon",
                "self._called_off = self.running",
                "pass",
            ),
        ),
        test="test_called_off_restore:test_a_state_that_a_worker_loads_while_its_site_is_removed_is_said_to_be_there",
    ),
    Undone(
        row=153,
        patches=(Patch("chaos_protocols.site:SiteMachine._install", "self.link_keys.starts_changed()", "pass"),),
        test="test_later_start:test_the_link_to_an_older_start_than_the_run_has_agreed_on_is_closed",
    ),
    Undone(
        row=154,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.is_lost",
                "(since_s, self._apart_s)",
                "(since_s,)",
            ),
        ),
        test="test_pause:test_a_late_word_of_a_scheduler_to_which_no_way_leads_keeps_nobody_waiting_for_its_silence",
    ),
    Undone(
        row=155,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._departed",
                'gone.cause != "banned"',
                'gone.cause == "failed"',
            ),
        ),
        test="test_leaver_with_the_state:test_those_that_stay_wait_for_what_a_leaver_alone_has",
    ),
    Undone(
        row=155,
        patches=(
            Patch(
                "chaos_protocols.scheduler.removals:_taken_along",
                "situation.active - {site} or not stay or keeps is None",
                "True or keeps is None",
            ),
        ),
        test="test_leaver_with_the_state:test_those_that_stay_wait_for_what_a_leaver_alone_has",
    ),
    Undone(
        row=156,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.is_lost",
                "(since_s, self._apart_s)",
                "(since_s,)",
            ),
        ),
        test="test_pause:test_a_scheduler_whose_words_come_over_an_outsider_alone_is_out_of_reach",
    ),
    Undone(
        row=157,
        patches=(
            Patch("chaos_protocols.agreement.roster:Roster.away", "if self.record(site) is None else None", "or None"),
        ),
        test="test_leaver_with_the_state:test_what_a_leaver_took_along_when_it_failed_before_says_nothing",
    ),
    Undone(
        row=158,
        patches=(
            Patch(
                "chaos_protocols.scheduler.removals:_taken_along",
                "site in situation.holding",
                "site in situation.active",
            ),
        ),
        test="test_leaver_with_the_state:"
        "test_a_leaver_whose_script_gives_nothing_more_has_all_rounds_up_to_its_last_one",
    ),
    Undone(
        row=158,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.leave_requested",
                "request.keeps is not None and",
                "False and",
            ),
        ),
        test="test_leaver_with_the_state:test_a_leaver_goes_when_it_is_known_whether_its_worker_trains",
    ),
    Undone(
        row=159,
        patches=(
            Patch(
                "chaos_protocols.state.local_checkpoint:CheckpointFiles.offered", "if writing is None or", "if True or"
            ),
        ),
        test="test_unfinished_checkpoint:test_it_is_offered_and_reported_before_it_is_whole",
    ),
    Undone(
        row=159,
        patches=(
            Patch(
                "chaos_protocols.state.restore:StateRestore.go_on",
                "restoring.checkpoint == self._files.writing",
                "False",
            ),
        ),
        test="test_unfinished_checkpoint:test_it_is_read_when_it_is_whole",
    ),
    Undone(
        row=159,
        patches=(
            Patch(
                "chaos_protocols.state.machine:WorkerState.checkpoint_written",
                "attempt is not None and event.reason",
                "False",
            ),
        ),
        test="test_unfinished_checkpoint:test_where_it_could_not_be_made_the_one_before_is_offered",
    ),
    Undone(
        row=160,
        patches=(
            Patch(
                "chaos_protocols.outbox:Outbox.begin",
                "min(now_s - self.now_s, self.settings.late_look_s)",
                "now_s - self.now_s",
            ),
        ),
        test="test_last_checkpoint:test_what_a_worker_has_answered_while_its_daemon_stood_still_is_read_first",
    ),
    Undone(
        row=161,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._newest",
                "self._reports.lived_through()",
                "True",
            ),
        ),
        test=(
            "test_leaver_with_the_state:test_where_all_daemons_were_restarted_a_leavers_last_rounds_may_have_been_done"
        ),
    ),
    Undone(
        row=162,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission._admission_runs",
                "command.record.site == site",
                "False",
            ),
        ),
        test=(
            "test_joins_called_off:"
            "test_a_joiner_that_leaves_while_its_admission_is_in_the_log_is_answered_when_that_is_clear"
        ),
    ),
)
