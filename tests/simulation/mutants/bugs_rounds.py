"""Planted in rounds and states: what is taken, given, kept, applied, resolved, handed over.

Not planted: that `RoundResolved` keeps a replication plan of a round it voids. A source of the roster that has taken
that snapshot has done its round, would have said so, and the round would stand; one that has not takes it after the new
result.
"""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

ROUNDS_MODULE = "chaos_protocols.rounds.machine:RoundMachine"
OWN = "chaos_protocols.rounds.contribution:OwnContribution"
GIVEN = "chaos_protocols.rounds.contribution:GivenPart"
DELIVERY = "chaos_protocols.rounds.delivery:ResultDelivery"
RESOLUTION = "chaos_protocols.scheduler.round_resolution"
RESTORE_POINT = "chaos_protocols.scheduler.restore_point:RestorePoint"

ROUNDS = (
    Bug(
        name="the epoch of a result is not checked",
        patches=(
            Patch(
                f"{ROUNDS_MODULE}.reduce_finished",
                "if tag != self.running:",
                "if self.running is None or tag.round != self.running.round:",
            ),
            # The second fence: the averaging machine, too, takes nothing that is not of its open tag.
            Patch(
                "chaos_protocols.rounds.reduce.machine:ReduceMachine._flow",
                "if one is None or one.tag != header.tag:",
                "if one is None or one.tag.round != header.tag.round:",
            ),
            Patch(
                "chaos_protocols.rounds.reduce.machine:ReduceMachine._position_told",
                "if one.tag == header.tag:",
                "if one.tag.round == header.tag.round:",
            ),
        ),
        breaks=(2, 3),
    ),
    Bug(
        name="a site that has promised goes on with the older epoch",
        patches=(
            Patch(f"{ROUNDS_MODULE}.install", "if roster.resolving:", "if False:"),
            Patch("chaos_protocols.agreement.roster:Roster.view_of", "if self.resolving:", "if False:"),
            Patch(f"{ROUNDS_MODULE}.advance", "or roster.resolving", ""),
        ),
        breaks=(2,),
    ),
    Bug(
        name="no hold before a planned change",
        patches=(Patch("chaos_protocols.site:SiteMachine.propose", "if first_round is not None:", "if False:"),),
        breaks=(2, 3, 8),
    ),
    Bug(
        name="the hold ends before the new views are known",
        patches=(
            Patch(
                "chaos_protocols.site:SiteMachine._install",
                "old, rekeyed = self.replica.install(roster)",
                "old, rekeyed = self.replica.install(roster); self._lift_fence()",
            ),
        ),
        breaks=(2, 3, 8),
    ),
    Bug(
        name="resolved without asking",
        patches=(
            Patch(
                f"{RESOLUTION}:RoundResolution.step",
                "answers = {**self._answers, facts.site: facts.round_status()}",
                "answers = {**dict.fromkeys(asked, facts.round_status()), **self._answers,"
                " facts.site: facts.round_status()}",
            ),
        ),
        breaks=(2,),
    ),
    Bug(
        name="resolved at the slowest site's round",
        patches=(Patch(f"{RESOLUTION}:outcome_of", "max(held.values()", "min(held.values()"),),
        breaks=(2,),
    ),
    Bug(
        name="a newcomer counts as holder of a result",
        patches=(
            Patch(f"{RESOLUTION}:outcome_of", "if answer.digest or answer.has_state", ""),
            Patch(
                "chaos_protocols.membership.reporting:Reporting.round_status",
                "if not self._membership.begun:",
                "if False:",
            ),
        ),
        breaks=(2, 8),
    ),
    Bug(
        name="the resolve rule is skipped after a failure",
        patches=(
            Patch("chaos_protocols.scheduler.removals:remove_site", "resolve=removal.resolve,", "resolve=False,"),
            Patch("chaos_protocols.scheduler.removals:remove_site", "if removal.resolve:", "if False:"),
        ),
        breaks=(2, 5, 8),
    ),
    Bug(
        name="results are kept one round too short",
        patches=(
            Patch(f"{ROUNDS_MODULE}.worker_applied", "before_round=needed", "before_round=self.completed_round + 1"),
            Patch(
                f"{ROUNDS_MODULE}._complete",
                "before_round=self.delivery.log.first_kept(self.completed_round)",
                "before_round=self.completed_round + 1",
            ),
        ),
        breaks=(2, 8),
    ),
    Bug(
        name="a site contributes twice",
        patches=(
            Patch(f"{OWN}._whole", "self.given, self.given_round = True,", "self.given, self.given_round = False,"),
        ),
        breaks=(3,),
    ),
    Bug(
        name="standby counts with a weight",
        patches=(Patch(f"{OWN}.give", "self._whole(round_number, 0.0)", "self._whole(round_number, 1.0)"),),
        breaks=(3,),
    ),
    Bug(
        name="a part counts as whole before it is",
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.tree:TreeFlow.contribute", "self.goes_on(ready)", "self.goes_on(None)"
            ),
        ),
        breaks=(3,),
    ),
    Bug(
        name="a contribution counts for whatever round is open",
        patches=(
            Patch(f"{OWN}.give", "and self._offered[0] == round_number", ""),
            Patch(f"{ROUNDS_MODULE}._complete", "self.own.withdraw()", "pass"),
        ),
        breaks=(3, 4),
    ),
    Bug(
        name="a removed site gives to rounds it still knows of",
        patches=(Patch(f"{ROUNDS_MODULE}.leave_run", "self.takes_part = False", "pass"),),
        breaks=(3,),
        seeds=120,
    ),
    Bug(
        name="results after the snapshot are not applied",
        patches=(
            Patch(
                f"{ROUNDS_MODULE}.worker_loaded",
                "self.delivery.loaded(round_number)",
                "self.delivery.loaded(self.completed_round); self.delivery._queue.clear()",
            ),
        ),
        breaks=(4,),
    ),
    Bug(
        name="promoted before it is level",
        patches=(
            Patch(
                "chaos_protocols.membership.catch_up:CatchUp.report",
                "is_over = rounds.caught_up",
                "is_over = True",
            ),
            # The second fence: whoever is promoted trains only when its worker has applied all that is here.
            Patch(f"{DELIVERY}.next", "if self._queue:", "if self._queue and not self.active:"),
            Patch(f"{DELIVERY}.may_train", "and self.caught_up(completed)", ""),
        ),
        breaks=(4, 8),
    ),
    Bug(
        name="a snapshot is taken in the update phase",
        patches=(
            Patch(
                "tests.simulator.node:Node._snapshot",
                "or worker.updating or worker.reached < due",
                "or worker.reached + worker.updating < due",
            ),
            Patch(
                "tests.simulator.node:Node._apply",
                "worker.updating = True",
                "worker.updating = True; self._snapshot(worker)",
            ),
        ),
        breaks=(4,),
    ),
    Bug(
        name="a snapshot of another round is served",
        patches=(
            Patch(
                "chaos_protocols.state.snapshot_source:SnapshotSource.snapshot_taken",
                "and plan.round == round_number",
                "",
            ),
            # The second fence: the worker takes it after the round that it was asked for.
            Patch("tests.simulator.node:Node._snapshot", "or worker.reached < due", ""),
            Patch("tests.simulator.node:Node._snapshot", "round=due))", "round=worker.reached))"),
        ),
        breaks=(4,),
    ),
    Bug(
        name="the hash of what came is not compared",
        patches=(
            Patch(
                "chaos_protocols.state.transfer.joiner:TransferMachine.checked", "if digest == check.hash", "if True"
            ),
        ),
        breaks=(2, 4),
    ),
    Bug(
        name="an older state is adopted silently",
        patches=(Patch(f"{RESTORE_POINT}._choose", "if best is None or awaited:", "if best is None:"),),
        breaks=(8, 10),
    ),
    Bug(
        name="a site that failed is not waited for",
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites.than",
                "if gone.site not in here]",
                "if False]",
            ),
        ),
        breaks=(8, 10),
    ),
    Bug(
        name="how far the run has come is forgotten",
        patches=(Patch("chaos_protocols.rounds.reached:ReachedRound.of", "return self.noted.round if", "return 0 if"),),
        breaks=(8, 10),
    ),
    Bug(
        name="any state is adopted while members train",
        patches=(
            Patch(
                f"{RESTORE_POINT}.step",
                "if roster.resolving or trains or self._reports.anybody_rests():",
                "if roster.resolving:",
            ),
            # The second fence: a worker without the newest round is not taken.
            Patch(
                f"{RESTORE_POINT}._choose",
                "or (best is not None and self._has_the_newest(best))",
                "or best is not None",
            ),
        ),
        breaks=(2, 4),
    ),
    Bug(
        name="a site counts with whatever weight its script says",
        patches=(Patch(f"{GIVEN}.given", "bounds.weighed(self.weight)", "self.weight"),),
        breaks=(3,),
    ),
    Bug(
        name="one operator changes the bounds",
        patches=(
            Patch(
                "chaos_protocols.scheduler.bounding:Bounding._wanted",
                "2 * count > len(roster.member_ids())",
                "count > 0",
            ),
        ),
        breaks=(11,),
    ),
    Bug(
        name="the first round of a view is clipped around a result that some of its sites have",
        patches=(
            Patch(
                f"{ROUNDS_MODULE}._open",
                "if not ahead.enough",
                "if object.__setattr__(ahead, 'centred', bool(ahead.bounds.clip_radius and self.digest)) "
                "or not ahead.enough",
            ),
        ),
        breaks=(3,),
    ),
)
