"""Planted bugs: each is a patch at run time, and must be caught by the simulator within SEEDS_MAX seeds.

`python -m tests.simulation.mutants` prints bug, seed and invariant. A bug that is not caught means that an oracle, or a
fault, is missing. Exit status 1 in that case.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from tests.simulator.__main__ import why_not
from tests.simulator.node import Disk, Node

from chaos_protocols import proposals, reconcile, requests
from chaos_protocols.commands import RemoveSite
from chaos_protocols.liveness import LinkTable
from chaos_protocols.raft import election, replication
from chaos_protocols.raft.core import Core
from chaos_protocols.roster import Roster
from chaos_protocols.rounds import RoundMachine
from chaos_protocols.routing import OverlayView, ReplayGuard
from chaos_protocols.scheduler import SchedulerMachine
from chaos_protocols.site import SiteMachine
from chaos_protocols.standing import Standing

SEEDS_MAX = 60

Patch = tuple[Any, str, Any]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _vote_not_persisted() -> list[Patch]:
    original = Disk.persist

    def persist(self: Disk, effect: Any) -> None:
        original(self, dataclasses.replace(effect, hard_state=None))

    return [(Disk, "persist", persist)]


def _log_not_persisted() -> list[Patch]:
    original = Disk.persist

    def persist(self: Disk, effect: Any) -> None:
        original(self, dataclasses.replace(effect, entries=()))

    return [(Disk, "persist", persist)]


def _epoch_not_checked() -> list[Patch]:
    def reduce_finished(self: RoundMachine, tag: Any, digest: str, weights: Any) -> Any:
        self.running = None
        self.contributed = False
        return self._complete(tag.round, tag.epoch, digest, weights)

    return [(RoundMachine, "reduce_finished", reduce_finished)]


def _hold_released_too_early() -> list[Patch]:
    def install(self: SiteMachine, roster: Roster, command: Any) -> None:
        old, self._roster = self._roster, roster
        self._release_hold()
        self.standing.roster_changed(old, command)

    return [(SiteMachine, "_install", install)]


def _no_hold() -> list[Patch]:
    original = SiteMachine.propose

    def propose(self: SiteMachine, command: Any, configuration: Any, first_round: int | None) -> bool:
        return original(self, command, configuration, None)

    return [(SiteMachine, "propose", propose)]


def _settle_without_asking() -> list[Patch]:
    original = reconcile.settle

    def settle(scheduler: SchedulerMachine, now_s: float) -> bool:
        for site in scheduler.host.roster.site_ids():
            scheduler.answers.setdefault(site, scheduler.host.settle_answer())
        return original(scheduler, now_s)

    return [(reconcile, "settle", settle)]


def _settled_at_the_slowest() -> list[Patch]:
    return [(reconcile, "max", min)]


def _newcomer_counts_as_holder() -> list[Patch]:
    original = SiteMachine.settle_answer

    def settle_answer(self: SiteMachine) -> Any:
        return msgspec.structs.replace(original(self), has_state=True)

    return [(SiteMachine, "settle_answer", settle_answer)]


def _removal_of_the_failed_never_settled() -> list[Patch]:
    original = proposals.remove_site

    def remove_site(situation: Any, negotiation: Any) -> Any:
        command, configuration = original(situation, negotiation)
        return msgspec.structs.replace(command, settle=False), configuration

    return [(proposals, "remove_site", remove_site)]


def _leaver_recorded_as_failed() -> list[Patch]:
    original = proposals.remove_site

    def remove_site(situation: Any, negotiation: Any) -> Any:
        command, configuration = original(situation, negotiation)
        assert isinstance(command, RemoveSite)
        gone = situation.roster.departed and negotiation.left and negotiation.settle
        if gone:
            command = msgspec.structs.replace(
                command, departure=msgspec.structs.replace(command.departure, cause="failed")
            )
        return command, configuration

    return [(proposals, "remove_site", remove_site)]


def _no_replay_guard() -> list[Patch]:
    return [(ReplayGuard, "is_new", _always(True))]


def _restart_not_noticed() -> list[Patch]:
    return [(SiteMachine, "restarted_as", _always(None))]


def _restart_keeps_incarnation() -> list[Patch]:
    original = Node.start

    def start(self: Node) -> None:
        if self.disk.incarnation:
            self.disk.incarnation -= 1
        original(self)

    return [(Node, "start", start)]


def _silence_unnoticed() -> list[Patch]:
    def tick_link(self: LinkTable, neighbour: Any, now_s: float) -> Any:
        from chaos_protocols.liveness import LinkPhase

        return [] if neighbour.phase is LinkPhase.UP else original(self, neighbour, now_s)

    original = LinkTable._tick_link
    return [(LinkTable, "_tick_link", tick_link)]


def _learner_promoted_before_it_is_level() -> list[Patch]:
    def report_level(self: Standing) -> None:
        from chaos_protocols.messages import LevelReport

        if self.transfer is not None and self.in_roster:
            self._machine.tell_scheduler(LevelReport(round=0, transfer=self.transfer.transfer))

    return [(Standing, "_report_level", report_level)]


def _state_taken_as_it_is() -> list[Patch]:
    original = RoundMachine.worker_loaded

    def worker_loaded(self: RoundMachine, round_number: int) -> Any:
        effects = original(self, round_number)
        self._queue.clear()
        self.worker_round = self.done
        return effects

    return [(RoundMachine, "worker_loaded", worker_loaded)]


def _results_dropped_at_once() -> list[Patch]:
    from tests.simulator.bulk import SimulatedBulk

    original = SimulatedBulk.drop_results

    def drop_results(self: SimulatedBulk, before_round: int) -> None:
        original(self, before_round + 1)

    return [(SimulatedBulk, "drop_results", drop_results)]


def _wrong_result_taken() -> list[Patch]:
    def settled(self: RoundMachine, round_number: int) -> Any:
        return []

    return [(RoundMachine, "settled", settled)]


def _stale_commands() -> list[Patch]:
    return [(SiteMachine, "can_propose", lambda self: self.raft.can_propose)]


def _everybody_may_lead() -> list[Patch]:
    return [(Core, "has_majority", lambda self, sites: len(sites) >= 1)]


def _shorter_log_elected() -> list[Patch]:
    return [(election, "log_serves", _always(True))]


def _committed_by_one() -> list[Patch]:
    return [(replication, "majority", _always(1))]


def _two_votes_in_a_term() -> list[Patch]:
    def receive_vote(core: Core, source: Any, message: Any, now_s: float) -> None:
        core.vote = None
        original(core, source, message, now_s)

    original = election.receive_vote
    return [(election, "receive_vote", receive_vote)]


def _adopts_any_state() -> list[Patch]:
    original = reconcile.adopt

    def adopt(scheduler: SchedulerMachine, now_s: float) -> bool:
        scheduler.inactive_since_s = -1e9 if not scheduler.active_sites() else None
        return original(scheduler, now_s)

    return [(SchedulerMachine, "active_sites", _always(frozenset())), (reconcile, "adopt", adopt)]


def _stale_link_reports() -> list[Patch]:
    def not_denied(self: OverlayView, reporter: Any, neighbour: Any) -> bool:
        return True

    return [(OverlayView, "_not_denied", not_denied)]


def _leave_forgotten() -> list[Patch]:
    return [(requests, "leave_requested", _always(None))]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    "term and vote not persisted": _vote_not_persisted,
    "log entries not persisted": _log_not_persisted,
    "hold released before the views are known": _hold_released_too_early,
    "no hold before a planned change": _no_hold,
    "settled without asking": _settle_without_asking,
    "settled at the slowest site's round": _settled_at_the_slowest,
    "settle rule skipped after a failure": _removal_of_the_failed_never_settled,
    "a leaver is recorded as failed": _leaver_recorded_as_failed,
    "replays are let through": _no_replay_guard,
    "a restarted daemon is not noticed": _restart_not_noticed,
    "a restart keeps the incarnation": _restart_keeps_incarnation,
    "promoted before it is level": _learner_promoted_before_it_is_level,
    "results are kept one round too short": _results_dropped_at_once,
    "elected by itself alone": _everybody_may_lead,
    "elected with a shorter log": _shorter_log_elected,
    "committed by one voter": _committed_by_one,
    "two votes in one term": _two_votes_in_a_term,
    "any state adopted while members train": _adopts_any_state,
    "reports of dead links are ignored": _stale_link_reports,
    "requests to leave are forgotten": _leave_forgotten,
}


NOT_CAUGHT_YET: dict[str, Callable[[], list[Patch]]] = {
    "commands made from a roster that is not up to date": _stale_commands,
    "epoch of a result not checked": _epoch_not_checked,
    "a newcomer counts as holder of a result": _newcomer_counts_as_holder,
    "silence is not noticed": _silence_unnoticed,
    "results after the snapshot are not applied": _state_taken_as_it_is,
    "a void round is kept by who counted ahead": _wrong_result_taken,
}
"""Known gaps: these do not show within SEEDS_MAX seeds (the engines check tags too; cuts heal before the end; the cases
are rare). Each needs a sharper fault or a scenario. `python -m tests.simulation.mutants WORD` tries them."""


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """The protocols with this bug in them."""
    patches = {**BUGS, **NOT_CAUGHT_YET}[bug]()
    missing = object()
    before = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def caught(bug: str, *, seeds: int = SEEDS_MAX) -> tuple[int, int, str] | None:
    """Seed, sites and reason of the first run in which the bug shows; None: not within so many seeds."""
    with planted(bug):
        for seed in range(seeds):
            sites = 3 + seed % 4
            told = why_not(seed, sites)
            if told:
                return seed, sites, told.splitlines()[0]
    return None


def main() -> int:
    words = sys.argv[1:]
    known = {**BUGS, **NOT_CAUGHT_YET} if words else BUGS
    wanted = [bug for bug in known if not words or any(word in bug for word in words)]
    missed = 0
    for bug in wanted:
        found = caught(bug)
        missed += found is None
        seed, sites, reason = found or (0, 0, f"NOT CAUGHT within {SEEDS_MAX} seeds")
        print(f"{bug:<52} {seed:>4} {sites:>2}  {reason[:110]}", flush=True)
    print(f"{len(wanted)} planted bugs, {len(wanted) - missed} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
