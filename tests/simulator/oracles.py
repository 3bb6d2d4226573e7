"""What must always hold, and what was seen so far: the nine invariants of protocols.md section 8 that concern safety.

Each check names its invariant; a violation is an AssertionError with the story so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos_protocols import effects, events
from chaos_protocols.plans import Tag
from chaos_protocols.roster import Roster

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World


GIVEN_MAX = 4096


class Violation(AssertionError):
    """An invariant does not hold."""


class Oracles:
    def __init__(self, world: World) -> None:
        self.world = world
        self.leader_of_term: dict[int, str] = {}
        self.roster_at: dict[int, Roster] = {}
        self.result_of: dict[int, tuple[str, Any]] = {}
        self.state_of: dict[int, str] = {}
        self.rounds_done = 0
        self.graceful: set[tuple[str, int]] = set()
        self.given: dict[tuple[Tag, str], set[float]] = {}
        self.members_of: dict[int, tuple[str, ...]] = {}
        self._settled_epoch = 0
        self.newest: Roster | None = None
        self._checked_epoch: dict[str, int] = {}

    def fail(self, number: int, text: str) -> None:
        story = "\n".join(self.world.story[-60:])
        raise Violation(f"invariant {number}: {text}\nseed {self.world.seed}, at {self.world.now_s:.3f} s\n{story}")

    def after_step(self, node: Node) -> None:
        machine = node.machine
        if machine is None:
            return
        if machine.scheduler.leading:
            known = self.leader_of_term.setdefault(machine.term, node.site)
            if known != node.site:
                self.fail(1, f"term {machine.term} has two schedulers: {known} and {node.site}")
        if machine.rounds.active and not node.was_active:
            self.activated(node)
        node.was_active = machine.rounds.active
        roster = machine.roster
        if roster.epoch != self._checked_epoch.get(node.site):
            self._checked_epoch[node.site] = roster.epoch
            seen = self.roster_at.setdefault(roster.epoch, roster)
            if seen != roster:
                self.fail(1, f"{node.name} has another roster of epoch {roster.epoch} than seen before")
            if self.newest is None or roster.epoch > self.newest.epoch:
                self.newest = roster
                self._departed(roster)
            if seen is roster:
                for view in roster.views:
                    self.members_of.setdefault(view.epoch, view.members)
            if seen is roster and not roster.settling:
                self._settled(roster)

    def _departed(self, roster: Roster) -> None:
        for gone in roster.departed:
            key = (gone.site, gone.incarnation)
            if gone.cause == "left":
                self.graceful.add(key)
            elif key in self.graceful:
                self.fail(9, f"{gone.site} left gracefully, and is recorded as {gone.cause}")

    def _settled(self, roster: Roster) -> None:
        """What was settled stands: results of later rounds, which only removed sites have seen, are void. Where the run
        goes on from a worker's state, that state counts, and no other."""
        if roster.settled_epoch <= self._settled_epoch:
            return
        self._settled_epoch = roster.settled_epoch
        adopted = roster.adopted_epoch == roster.settled_epoch
        if adopted:
            self.state_of.pop(roster.settled_round, None)
        for number in [one for one in self.result_of if one > roster.settled_round]:
            for node in self.world.nodes.values():
                machine = node.machine
                if machine is None or not machine.standing.begun or roster.record(machine.site) is None:
                    continue
                if (machine.rounds.worker_round or 0) >= number and machine.roster.epoch <= roster.epoch:
                    record = roster.record(machine.site)
                    same = record is not None and record.incarnation == machine.incarnation
                    if same and record is not None and record.state == "member":
                        self.fail(2, f"{node.name} has applied round {number}, which was settled as not done")
            self.result_of.pop(number, None)
            self.state_of.pop(number, None)
        self.rounds_done = min(self.rounds_done, roster.settled_round)

    def contributed(self, node: Node, effect: effects.Contribute) -> None:
        """Noted: what went into a round, to compare with what came out (invariant 3)."""
        key = (effect.tag, node.site)
        self.given.setdefault(key, set()).add(effect.weight)
        while len(self.given) > GIVEN_MAX:
            self.given.pop(next(iter(self.given)))

    def reduced(self, node: Node, event: events.ReduceFinished) -> None:
        """A round is done at a site: exactly the members of its epoch are in the result, each with its weight."""
        if not event.weights:
            return
        members = self.members_of.get(event.tag.epoch)
        there = tuple(sorted(site for site, _ in event.weights))
        if members is None or node.site not in members:
            return  # a listener is handed results by their round: it may not know yet which epoch that belongs to
        if there != members:
            self.fail(3, f"round {event.tag.round} of epoch {event.tag.epoch} has {there}, its members are {members}")
        for site, weight in event.weights:
            given = self.given.get((event.tag, site))
            if given is not None and weight not in given:
                self.fail(3, f"round {event.tag.round} counts {site} with {weight}, it gave {given}")

    def state_sent(self, node: Node, joiner: str) -> None:
        """State leaves a site: only for the joiner of the plan that is agreed there."""
        machine = node.machine
        if machine is None:
            return
        plan = machine.roster.replication
        if plan is None or plan.joiner != joiner or machine.roster.record(plan.joiner) is None:
            self.fail(5, f"{node.name} sends state to {joiner}, which is not agreed to get it")

    def replayed(self, node: Node, out: list[Any]) -> None:
        """An old message was delivered once more: it must change nothing."""
        machine = node.machine
        if machine is None or machine.scheduler.leading:
            return  # the scheduler looks around at every event: what it does now is not for the message's sake
        if any(not isinstance(effect, effects.SetTimer) for effect in out):
            self.fail(6, f"{node.name} acts on a replayed message: {out}")

    def activated(self, node: Node) -> None:
        """A site begins to contribute: its state is that of the members."""
        worker = node.worker
        if worker is None or not self._counts(node, worker.round):
            return
        known = self.state_of.get(worker.round)
        if known is not None and known != worker.state:
            self.fail(4, f"{node.name} was promoted with another state of round {worker.round} than the members have")

    def applied(self, node: Node, number: int, digest: str, state: str) -> None:
        """A worker has applied the result of a round. What a site does that was removed meanwhile concerns nobody: it
        gets another state before it takes part again."""
        if not self._counts(node, number):
            return
        seen = self.result_of.setdefault(number, (digest, None))
        if seen[0] != digest:
            self.fail(2, f"{node.name} applied another result of round {number}: {digest}, others {seen[0]}")
        known = self.state_of.setdefault(number, state)
        if known != state:
            self.fail(4, f"{node.name} has another state at the end of round {number} than the others")
        self.rounds_done = max(self.rounds_done, number)

    def _counts(self, node: Node, number: int) -> bool:
        roster, machine = self.newest, node.machine
        if roster is None:
            return True
        record = roster.record(node.site)  # type: ignore[arg-type]
        if record is not None:
            return record.incarnation == node.disk.incarnation
        view = roster.view_of(number)
        return machine is not None and view is not None and node.site in view.members

    def recorded(self, node: Node, effect: effects.Record) -> None:
        return
