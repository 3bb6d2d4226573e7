"""Invariants 5, 6 and 9: who is given what, what old messages may do, and how a leave is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from chaos_protocols import effects
from chaos_protocols.agreement.raft.messages import AppendRequest, SnapshotRequest
from chaos_protocols.agreement.roster import Departure, Roster
from chaos_protocols.names import short
from chaos_protocols.wire.bulk import BlockData
from chaos_protocols.wire.control import LeaveAnswer, LeaveRequest, RaftEnvelope

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos_protocols.site import SiteMachine
    from tests.simulator.node import Node
    from tests.simulator.oracles_agreement import AgreementOracle
    from tests.simulator.oracles_rounds import RoundsOracle
    from tests.simulator.outbox import Frame

    Fail = Callable[[int, str], NoReturn]


class AdmissionOracle:
    """Invariant 5: state goes to the joiner of the agreed plan, from its sources; the roster to who is in it."""

    def __init__(self, fail: Fail, agreement: AgreementOracle) -> None:
        self._fail, self._agreement = fail, agreement
        self._since: dict[str, tuple[int, int]] = {}
        self._run = ""

    def bulk_sent(self, node: Node, destination: str, frame: Frame) -> None:
        if type(frame.header) is not BlockData or node.machine is None:
            return
        roster = self._agreement.roster_at.get(node.machine.roster.epoch)
        plan = roster.replication if roster is not None else None
        if plan is None or plan.transfer != frame.header.transfer or plan.joiner != destination:
            self._fail(5, f"{node.name} sends the state to {destination}, which is not agreed to get it")
        if roster is not None and roster.record(plan.joiner) is None:
            self._fail(5, f"{node.name} sends the state to {destination}, which is not in the roster")
        if node.site not in {part.source for part in plan.ranges}:
            self._fail(5, f"{node.name} sends the state, but is no source of {plan.transfer}")

    def sent(self, node: Node, effect: effects.SendEnvelope) -> None:
        """The log holds the roster: it goes to voters and learners only. A removed site is served until its removal is
        committed, so every configuration since the last step's commit counts."""
        envelope = effect.envelope
        if type(envelope.message) is not RaftEnvelope or envelope.source != node.site or node.machine is None:
            return
        message = envelope.message.message
        if not (message.entries if isinstance(message, AppendRequest) else isinstance(message, SnapshotRequest)):
            return
        core, (incarnation, since) = node.machine.raft._core, self._since.get(node.site, (0, 0))
        if incarnation != node.machine.incarnation:
            since = 0
        told = envelope.destination
        admitted = core.log.configurations_since(max(since, core.log.base_index))
        if all(told not in one.voters and told not in one.learners for one in admitted):
            self._fail(5, f"{node.name} tells the roster to {envelope.destination}, which was never admitted")

    def after_step(self, node: Node) -> None:
        """Spec 2.13: no site of the run has a roster of another one, whoever founds it."""
        machine = node.machine
        assert machine is not None
        run = machine.roster.run_id
        self._run = self._run or run
        if run not in ("", self._run):
            self._fail(5, f"{node.name} has the roster of another run, {run}")
        self._since[node.site] = (machine.incarnation, machine.raft._core.commit_index)


class ReplayOracle:
    """Invariant 6: a message that was delivered before, or belongs to a former life of its sender, changes nothing."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail

    def replayed(self, node: Node, before: tuple[Any, ...], out: list[Any]) -> None:
        assert node.machine is not None
        acts = [effect for effect in out if not isinstance(effect, effects.SetTimer)]
        if acts:
            self._fail(6, f"{node.name} acts on a replayed message: {acts}")
        after = fingerprint(node)
        if after != before:
            changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
            self._fail(6, f"a replayed message changes {node.name}: {changed}")

    def bulk_replayed(self, node: Node, before: tuple[Any, ...]) -> None:
        if node.bulk is not None and bulk_fingerprint(node) != before:
            self._fail(6, f"a bulk message of a former epoch changes {node.name}")


NEGOTIATIONS = 8
"""Where they stand in a fingerprint: states by name."""

PENDING = 10
"""Where those stand that have something to be agreed: the names, and whether nothing is being agreed."""


def fingerprint(node: Node) -> tuple[Any, ...]:
    """All that decides what a site does next, save for when it last heard something (old bytes prove a live link).
    Compared with another one, thousands of times in a run: what has no order is not sorted."""
    machine = node.machine
    assert machine is not None
    core, rounds, scheduler = machine.raft._core, machine.rounds, machine.scheduler
    membership, participation, state = machine.membership, machine.participation, machine.state
    return (
        machine.roster.epoch,
        (core.term, core.vote, core.role, core.leader, core.commit_index, core.log.last_index, core.log.last_term),
        (frozenset(core.votes), frozenset(core.heard), core.transfer_target),
        {site: (one.match_index, one.next_index, one.mode) for site, one in core.progress.items()},
        (rounds.completed_round, rounds.digest, rounds.running, rounds.own.given, rounds.active, rounds.worker_round),
        (rounds.own.fence_round, rounds.fetching, rounds.phase),
        (membership.begun, membership.state, participation.joining.answer, participation.leaving.answer),
        (state.fetch.plan, state.session.round, state.source.plan, membership.evicted_epoch),
        {name: one.state for name, one in scheduler.negotiations.items()},
        dict(scheduler.term.resolution.answers),
        (frozenset(scheduler.term.negotiations.pending), scheduler.in_flight is None),
        {site: report[0] for site, report in scheduler.term.reports.newest.items()},
        {site: (one.phase, one.wanted, one.goodbye) for site, one in machine.links.neighbours.items()},
        dict(machine.network.incarnations),
    )


def bulk_fingerprint(node: Node) -> tuple[Any, ...]:
    """All that the engines hold of rounds, results and states."""
    assert node.bulk is not None
    return node.bulk.fingerprint()


class LeaveOracle:
    """Invariant 9: who left is called that by everybody, for ever, and takes no completed round along."""

    def __init__(self, fail: Fail, agreement: AgreementOracle, rounds: RoundsOracle) -> None:
        self._fail, self._agreement, self._rounds = fail, agreement, rounds
        self.left: dict[tuple[str, int], Departure] = {}
        self._gone: dict[tuple[str, int], int] = {}
        self._asked: dict[tuple[str, int], str] = {}
        self._released: set[tuple[str, int]] = set()
        """Whom a scheduler has told that everybody has its last round."""

    def sent(self, node: Node, effect: effects.SendEnvelope) -> None:
        """What this site says itself of leaving."""
        message = effect.envelope.message
        if type(message) is LeaveRequest:
            self._asked[node.site, message.incarnation] = message.reason or "asked to leave"
        elif type(message) is LeaveAnswer and message.finished:
            self._released.add((effect.envelope.destination, message.incarnation))

    def committed(self, roster: Roster) -> None:
        for gone in roster.departed:
            key = (gone.site, gone.incarnation)
            if gone.cause != "left" and gone.reason == self._asked.get(key):
                self._fail(9, f"{gone.site} asked to leave, and is recorded as {gone.cause}")
            if gone.cause == "left":
                self.left[key] = gone
            elif key in self.left:
                self._fail(9, f"{gone.site} left gracefully, and is recorded as {gone.cause}")

    def resolved(self, previous: Any, resolved_round: int) -> None:
        for site, incarnation in self._gone:
            era, number = self._rounds.completed.get((site, incarnation), (None, 0))
            if era is previous and number > resolved_round:
                self._fail(9, f"{site} left with round {number}, and {resolved_round} was resolved: a round is lost")

    def recorded(self, node: Node, effect: effects.Record) -> None:
        """No event calls a site failed whose last life in the roster ended with a leave."""
        if effect.kind != "scale-in" or effect.outcome != "failed":
            return
        roster = self._agreement.roster
        for site, incarnation in self.left:
            there = roster is None or roster.record(site) is not None  # type: ignore[arg-type]
            if roster is None or there or effect.subject not in (short(site), site):
                continue
            last = next((gone for gone in reversed(roster.departed) if gone.site == site), None)
            if last is not None and last.incarnation == incarnation and last.cause == "left":
                self._fail(9, f"{node.name} records {effect.subject}, which left, as failed: {effect.reason}")

    def stopped(self, node: Node, effect: effects.StopDaemon) -> None:
        """A daemon ends gracefully: it was released, everybody has its last round, and so has its own worker."""
        machine, roster = node.machine, self._agreement.roster
        if machine is None or roster is None or not effect.graceful:
            return
        self._has_kept_its_state(node, machine)
        record = machine.roster.record(node.site) and roster.record(node.site)  # type: ignore[arg-type]
        alone = roster.member_ids() == (node.site,)  # a run ends with its last member
        if (
            record is not None
            and record.incarnation == machine.incarnation
            and not alone
            and "confirm it" not in effect.reason  # and says that nobody did
        ):
            self._fail(9, f"{node.name} ends as if it had left, but is still in the roster")
        gone = roster.departure(node.site, machine.incarnation)  # type: ignore[arg-type]
        if gone is None or gone.cause != "left" or effect.reason != "left the run":
            return
        if (node.site, machine.incarnation) not in self._released and not machine.participation.leaving.is_alone:
            self._fail(9, f"{node.name} left before it was told that everybody has its last round, {gone.last_round}")
        era = self._rounds.era_of(machine.roster.epoch)
        if era is not self._rounds.eras[-1]:
            return
        rounds = machine.rounds
        if not roster.resolving:  # else what it alone has leaves with it (spec 14.8): nobody asks it
            self._gone[node.site, machine.incarnation] = rounds.completed_round
        done = self._rounds.result(era, gone.last_round) is not None and gone.last_round > era.resolved_round
        if (
            done
            and machine.membership.begun
            and rounds.worker_round is not None
            and rounds.worker_round < gone.last_round
        ):
            self._fail(9, f"{node.name} left before its worker had applied its last round, {gone.last_round}")

    def _has_kept_its_state(self, node: Node, machine: SiteMachine) -> None:
        """What its worker has at the end lies on its disk, where it keeps checkpoints and the worker speaks."""
        session = machine.participation.session
        speaks = session.present and node.odd.answers_already and not node.hang.lasts
        if node.world.settings.keep.checkpoint == "off" or not speaks or not session.round:
            return
        if machine.participation.state.last.void:
            return
        lineage = machine.participation.state.lineage()
        if max(((one.lineage, one.round) for one in node.keeper.files), default=(0, 0)) < (lineage, session.round):
            self._fail(9, f"{node.name} left, and its worker's state of round {session.round} is not on its disk")
