"""Planted in rounds and states: what is taken, given, kept, applied, settled, handed over.

Not planted: that `Settled` keeps a replication plan of a round it voids. A source of the roster that has taken that
snapshot has done its round, would have said so, and the round would stand; one that has not takes it after the new
result.
"""

from __future__ import annotations

from tests.simulation.mutants.planting import Bug, Patch

ROUNDS_MODULE = "chaos_protocols.rounds:RoundMachine"
RECONCILE = "chaos_protocols.reconcile"

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
                "chaos_protocols.reduce.machine:ReduceMachine._flow",
                "if one is None or one.tag != header.tag:",
                "if one is None or one.tag.round != header.tag.round:",
            ),
            Patch(
                "chaos_protocols.reduce.machine:ReduceMachine._position_told",
                "if one.tag == header.tag:",
                "if one.tag.round == header.tag.round:",
            ),
        ),
        breaks=(2, 3),
    ),
    Bug(
        name="a site that has promised goes on with the older epoch",
        patches=(
            Patch(f"{ROUNDS_MODULE}.install", "if roster.settling:", "if False:"),
            Patch("chaos_protocols.roster:Roster.view_of", "if self.settling:", "if False:"),
            Patch(f"{ROUNDS_MODULE}.advance", "or roster.settling", ""),
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
                "old, self.roster = self.roster, roster",
                "old, self.roster = self.roster, roster; self._release_hold()",
            ),
        ),
        breaks=(2, 3, 8),
    ),
    Bug(
        name="settled without asking",
        patches=(
            Patch(
                f"{RECONCILE}:settle",
                "answers = {**scheduler.answers, host.site: host.settle_answer()}",
                "answers = {**dict.fromkeys(asked, host.settle_answer()), **scheduler.answers,"
                " host.site: host.settle_answer()}",
            ),
        ),
        breaks=(2,),
    ),
    Bug(
        name="settled at the slowest site's round",
        patches=(Patch(f"{RECONCILE}:settle", "max(held.values()", "min(held.values()"),),
        breaks=(2,),
    ),
    Bug(
        name="a newcomer counts as holder of a result",
        patches=(
            Patch(f"{RECONCILE}:settle", "if answers[site].digest or answers[site].has_state", ""),
            Patch("chaos_protocols.site:SiteMachine.settle_answer", "if not self.standing.begun:", "if False:"),
        ),
        breaks=(2, 8),
    ),
    Bug(
        name="the settle rule is skipped after a failure",
        patches=(
            Patch("chaos_protocols.proposals:remove_site", "settle=negotiation.settle,", "settle=False,"),
            Patch("chaos_protocols.proposals:remove_site", "if negotiation.settle:", "if False:"),
        ),
        breaks=(2, 5, 8),
    ),
    Bug(
        name="results are kept one round too short",
        patches=(
            Patch(f"{ROUNDS_MODULE}.worker_applied", "before_round=needed", "before_round=self.done + 1"),
            Patch(
                f"{ROUNDS_MODULE}._complete",
                "before_round=self.kept.first_kept(self.done)",
                "before_round=self.done + 1",
            ),
        ),
        breaks=(2, 8),
    ),
    Bug(
        name="a site contributes twice",
        patches=(Patch(f"{ROUNDS_MODULE}._contribute", "self.contributed = True", "pass"),),
        breaks=(3,),
    ),
    Bug(
        name="standby counts with a weight",
        patches=(
            Patch(f"{ROUNDS_MODULE}._contribute", "weight, has_bytes = 0.0, False", "weight, has_bytes = 1.0, False"),
        ),
        breaks=(3,),
    ),
    Bug(
        name="a contribution counts for whatever round is open",
        patches=(
            Patch(f"{ROUNDS_MODULE}._contribute", "and self._contribution[0] == tag.round", ""),
            Patch(f"{ROUNDS_MODULE}._complete", "self._contribution = None", "pass"),
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
                "self.worker_round = round_number",
                "self.worker_round = self.done; self._queue.clear()",
            ),
        ),
        breaks=(4,),
    ),
    Bug(
        name="promoted before it is level",
        patches=(
            Patch("chaos_protocols.leveling:Leveling.report", "level = machine.rounds.level", "level = True"),
            # The second fence: whoever is promoted trains only when its worker has applied all that is here.
            Patch(f"{ROUNDS_MODULE}._pump", "if self._queue:", "if self._queue and not self.active:"),
            Patch(f"{ROUNDS_MODULE}._pump", "and self.level", ""),
        ),
        breaks=(4,),
    ),
    Bug(
        name="a snapshot is taken in the update phase",
        patches=(
            Patch(
                "tests.simulator.node:Node._snapshot",
                "or worker.updating or worker.round < due",
                "or worker.round + worker.updating < due",
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
            Patch("chaos_protocols.serving:Serving.snapshot_taken", "and plan.round == round_number", ""),
            # The second fence: the worker takes it after the round that it was asked for.
            Patch("tests.simulator.node:Node._snapshot", "or worker.round < due", ""),
            Patch("tests.simulator.node:Node._snapshot", "round=due))", "round=worker.round))"),
        ),
        breaks=(4,),
    ),
    Bug(
        name="the hash of what came is not compared",
        patches=(
            Patch("chaos_protocols.transfer.joiner:TransferMachine.checked", "if digest == check.hash", "if True"),
        ),
        breaks=(2, 4),
    ),
    Bug(
        name="an older state is adopted silently",
        patches=(Patch("chaos_protocols.adopting:choose", "if one.round >= newest]", "]"),),
        breaks=(2,),
    ),
    Bug(
        name="any state is adopted while members train",
        patches=(
            Patch(
                f"{RECONCILE}:adopt",
                "if roster.settling or (roster.model is not None and host.active) or scheduler.anybody_active():",
                "if roster.settling:",
            ),
            # The second fence: a worker without the newest round is not taken.
            Patch("chaos_protocols.adopting:choose", "if one.round >= newest]", "]"),
        ),
        breaks=(2, 4),
    ),
)
