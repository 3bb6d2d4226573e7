"""Rules on whose state a run goes on from, and on what is heard of its recovery elsewhere (spec 13.3, 21.4)."""

from __future__ import annotations

from tests.simulation.undoing_rules import Rule

STATE = "chaos_protocols.state.machine:WorkerState"
OFFERS = "chaos_protocols.scheduler.restore_offers:RestoreOffers"
POINT, TERMS = (
    "chaos_protocols.scheduler.restore_point:RestorePoint",
    "chaos_protocols.scheduler.machine:SchedulerMachine",
)
RECOVERED = "chaos_protocols.membership.recovered_runs:RecoveredRuns"
TRUE = "chaos_protocols.wire.recovered:is_true"
RULES = "unit/protocols"
CHOSEN, POINTS = f"{RULES}/scheduler/test_restore_candidates.py", f"{RULES}/scheduler/test_restore_point.py"
MISSING = f"{RULES}/membership/test_missing_state.py"
TOLD, OTHERS = f"{RULES}/membership/test_starting_over.py", f"{RULES}/membership/test_other_recoveries.py"
FALSE_WORD = f"{TOLD}::test_a_false_word_counts_for_nothing"

OFFERED = (
    # -- whose state a run goes on from
    Rule(
        "13.3",
        "lets any stranger bring the state",
        f"{POINT}._is_of_the_run",
        "return self._facts.roster.knows(one.record.site)",
        "return True",
        f"{CHOSEN}::test_a_site_outside_can_bring_the_newest_state_back_where_it_was_in_the_run",
    ),
    Rule(
        "13.3",
        "takes a state of a round that nobody can have done",
        f"{OFFERS}.candidates",
        "if one.round <= ROUNDS_DONE_MAX]",
        "]",
        f"{CHOSEN}::test_a_state_of_a_round_that_nobody_can_have_done_is_nobodys_and_ends_no_scheduler",
    ),
    Rule(
        "13.3",
        "takes the offer of a former start",
        f"{OFFERS}._inside",
        "or record.incarnation != request.incarnation:",
        "or False:",
        f"{POINTS}::test_a_request_of_a_former_start_offers_no_state",
    ),
    Rule(
        "13.3",
        "takes a checkpoint of another model",
        f"{OFFERS}._all_offered",
        "if checkpoint is not None and checkpoint.spec_digest == worker.model.spec_digest:",
        "if checkpoint is not None:",
        f"{POINTS}::test_a_checkpoint_of_another_model_is_no_candidate",
    ),
    Rule(
        "13.3",
        "takes the state of a joiner that no member is linked with",
        f"{OFFERS}._outside",
        "or not links or site not in self._facts.reachable():",
        "or False:",
        f"{CHOSEN}::test_what_a_joiner_has_counts_where_it_is_linked_with_a_member_and_not_where_it_says_so",
    ),
    Rule(
        "13.3",
        "takes the state of a site that most members want out",
        f"{POINT}._offered",
        "if one.record.site not in banned]",
        "]",
        f"{RULES}/scheduler/test_bans.py::test_whom_most_members_want_out_is_not_let_in_for_its_state",
    ),
    Rule(
        "13.3",
        "believes a fresh worker of what history it is",
        f"{OFFERS}._lineage",
        "if request.worker_round else present",
        "if True else present",
        f"{CHOSEN}::test_a_fresh_worker_is_of_no_history_whatever_its_daemon_calls_it",
    ),
    Rule(
        "13.3",
        "offers the state of a worker that has yet to apply a result",
        f"{STATE}.request",
        "if self.is_unsure:",
        "if False:",
        f"{MISSING}::test_a_worker_that_has_yet_to_apply_a_result_offers_no_state_until_it_has",
    ),
    Rule(
        "13.3",
        "takes an offer of before its site got the state",
        f"{TERMS}.committed",
        "term.restore_point.offers.is_void(command.replication.joiner)",
        "pass",
        f"{CHOSEN}::test_what_a_site_offered_while_its_transfer_waited_for_its_turn_is_void_once_that_begins",
    ),
    Rule(
        "13.3",
        "takes an offer of before its site was chosen",
        f"{TERMS}.committed",
        "term.restore_point.offers.is_void(command.record.site)",
        "pass",
        f"{CHOSEN}::test_what_a_site_offered_before_it_was_let_in_is_void",
    ),
    Rule(
        "13.3",
        "takes the offer of a site that trains",
        f"{POINT}._forget_who_trains",
        "self.offers.is_void(site)",
        "pass",
        f"{CHOSEN}::test_what_comes_late_of_a_site_that_trains_by_now_is_no_offer",
    ),
    Rule(
        "13.3",
        "chooses another site for what the chosen one has asked before",
        f"{POINT}.asked",
        "if loading is None or site != loading[0] or self._knows_its_choice(site):",
        "if True:",
        f"{POINTS}::test_what_the_chosen_site_has_asked_before_it_heard_of_that_is_no_reason_to_choose_another_one",
    ),
    Rule(
        "13.3",
        "remembers all strangers that ask to join",
        f"{OFFERS}.outside",
        "for one in strangers[: max(0, len(strangers) - ASKERS_MAX)]:",
        "for one in ():",
        f"{CHOSEN}::test_of_strangers_that_ask_to_join_a_number_is_remembered",
    ),
    # -- what is heard of a recovery
    Rule(
        "21.4",
        "hears of recoveries of any run",
        f"{RECOVERED}._concerns",
        "or not ours.intersection(one.former):",
        "or False:",
        FALSE_WORD,
    ),
    Rule(
        "21.4",
        "hears of the recovery that its run came of",
        f"{RECOVERED}._concerns",
        "one.run_id == here or",
        "",
        f"{OTHERS}::test_the_recovery_that_this_run_came_of_is_no_news_in_it",
    ),
    Rule(
        "21.4",
        "believes another of what it has recovered itself",
        f"{RECOVERED}._concerns",
        "one.by == replica.site or",
        "",
        FALSE_WORD,
    ),
    Rule(
        "21.4",
        "believes whoever says that he has recovered the run",
        f"{RECOVERED}._concerns",
        "return self._was_here(one.by) and",
        "return",
        FALSE_WORD,
    ),
    Rule(
        "21.4",
        "believes a banned site that says so",
        f"{RECOVERED}._concerns",
        " and one.by not in replica.roster.banned",
        "",
        f"{OTHERS}::test_who_was_banned_since_this_run_was_made_is_heard_no_more",
    ),
    Rule(
        "21.4",
        "looks at no signature of a statement",
        f"{TRUE}",
        "return verify(one.by, one.public_key, one.signature, recovered_words(one))",
        "return True",
        FALSE_WORD,
    ),
    Rule(
        "21.4",
        "takes any id for that of the recovered run",
        f"{TRUE}",
        "one.run_id != recovered_run_id(one.former[0], one.generation, one.by, one.number)",
        "False",
        FALSE_WORD,
    ),
    Rule(
        "21.4",
        "tells of all that one site says",
        f"{RECOVERED}.told",
        " and times < TOLD_OF_EACH_MAX",
        "",
        f"{TOLD}::test_a_member_that_says_much_fills_nothing",
    ),
    Rule(
        "21.4",
        "remembers all that was heard",
        f"{RECOVERED}.told",
        "while len(self.heard) > HEARD_MAX:",
        "while False:",
        f"{TOLD}::test_of_many_that_say_so_the_newest_are_kept",
    ),
    Rule(
        "21.4",
        "takes an older statement for a newer one",
        f"{RECOVERED}.told",
        "before.statement.generation > one.generation:",
        "False:",
        f"{OTHERS}::test_an_older_recovery_of_a_site_does_not_take_the_place_of_its_newer_one",
    ),
    Rule(
        "21.4",
        "follows a guest that shows a true statement",
        f"{RECOVERED}._to_remember",
        "if itself or was_here:",
        "if True:",
        f"{OTHERS}::test_a_guest_that_shows_a_true_statement_is_not_whom_the_operator_follows",
    ),
    Rule(
        "21.4",
        "follows another where who has recovered the run has shown it itself",
        f"{RECOVERED}._to_remember",
        " and not (before.via == one.by and before.shown)",
        "",
        f"{OTHERS}::test_who_has_recovered_the_run_is_followed_where_it_was_heard_itself",
    ),
)
