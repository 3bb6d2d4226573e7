"""What must always hold: the twelve invariants (spec 18), each judged from what the sites really do.

The world tells every step; the checks are in `oracles_agreement` (1, 7), `oracles_rounds` (2, 3, 4),
`oracles_boundary` (5, 6, 9), `oracles_recovery` (8), `oracles_restore` (10), `oracles_operators` (10, and what 5 and 8
say of operators), `guests` (11) and `runs` (12). None of them asks a machine whether it is right: they keep their own
log, count their own quorums, and compute results and states themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from chaos_protocols import effects, events
from chaos_protocols.agreement.commands import RoundResolved, SetRestorePoint
from chaos_protocols.agreement.raft import Persist, Role
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.wire.control import LeaveAnswer, LeaveRequest, RaftEnvelope
from tests.simulator.check_lies import judge as judge_drift
from tests.simulator.gone_lies import judge as judge_missed
from tests.simulator.oracles_agreement import AgreementOracle
from tests.simulator.oracles_boundary import (
    AdmissionOracle,
    LeaveOracle,
    ReplayOracle,
    bulk_fingerprint,
    fingerprint,
)
from tests.simulator.oracles_bounds import BoundsOracle
from tests.simulator.oracles_counted import CountedOracle
from tests.simulator.oracles_operators import SAID_BY_OPERATORS, OperatorsOracle
from tests.simulator.oracles_recovery import RecoveryOracle
from tests.simulator.oracles_restore import RestoreOracle
from tests.simulator.oracles_rounds import RoundsOracle
from tests.simulator.oracles_standing import StandingOracle
from tests.simulator.releases import cannot_read
from tests.simulator.strays import OLDER
from tests.simulator.violation import NotPromised, Violation

if TYPE_CHECKING:
    from tests.simulator.averaging import Result
    from tests.simulator.node import Node
    from tests.simulator.outbox import Frame
    from tests.simulator.world import World

STORY_LINES = 60


class Oracles:
    """See the module. Every method is called by the world or by a node, at the moment that it names."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rounds = RoundsOracle(self.fail, world.nodes)
        self.bounds = BoundsOracle(self.fail, world)
        self.counted = CountedOracle(self.fail, world)
        self.agreement = AgreementOracle(self.fail, self.end, world.nodes, self._committed)
        self.rounds.roster_at, self.rounds.parts.is_apart = self.agreement.roster_at, self.agreement.is_apart
        self.admission = AdmissionOracle(self.fail, self.agreement)
        self.replays = ReplayOracle(self.fail)
        self.operators = OperatorsOracle(self.fail, world)
        self.restore = RestoreOracle(self.fail, world.nodes, self.rounds, self.operators)
        self.leaves = LeaveOracle(self.fail, self.agreement, self.rounds)
        self.recovery = RecoveryOracle(self.fail, world)
        self.standing = StandingOracle(self.fail, world)
        self._looked_at: dict[str, tuple[Any, ...]] = {}
        """By site, what three of them have judged last."""
        self._before: Roster | None = None
        """What was agreed last."""
        self._spoilers: set[str] = set()
        """Sites that sent a block with wrong bytes, in whatever life: it may arrive after they were started again."""

    def fail(self, number: int, text: str) -> NoReturn:
        where = f"seed {self.world.seed}, at {self.world.now_s:.3f} s"
        raise Violation(number, text, where, self.world.story[-STORY_LINES:])

    def end(self, reason: str) -> NoReturn:
        """Nothing is promised from here on."""
        raise NotPromised(reason)

    @property
    def newest(self) -> Roster | None:
        """The roster as the log has it, whoever knows of it."""
        return self.agreement.roster

    @property
    def rounds_done(self) -> int:
        return self.rounds.rounds_done

    def _committed(self, index: int, command: Any, roster: Roster) -> None:
        if isinstance(command, RoundResolved) and command.holders:
            era = self.rounds.eras[-1]
            if (older := self.agreement.on_older()) and self.rounds.result(era, command.round) is None:
                self.end(f"{older}, which has done round {command.round} by itself")
            self.leaves.resolved(era, command.round)
        before, self._before = self._before or roster, roster
        if isinstance(command, SetRestorePoint) and self.rounds.eras:
            self.restore.committed(index, command, before)
            self.world.runs.restored(command)
        if command is not None:
            self.operators.committed(index, self.agreement.log[index].term, command, before, roster)
        self.leaves.committed(roster)
        self.rounds.committed(index, command, roster)
        self.bounds.committed(index, command, roster)

    # -- the process

    def started(self, node: Node) -> None:
        """The machine is made from the disk; nothing was handled yet."""
        if node.stray:
            return
        self.agreement.started(node)
        self.recovery.started(node)
        self.operators.started(node)

    def before_step(self, node: Node, event: Any) -> None:
        """It is about to be handled."""
        if type(event) in SAID_BY_OPERATORS:
            self.operators.hears(node, event)

    def after_step(self, node: Node, event: Any) -> None:
        """An event was handled and all its effects are executed."""
        machine = node.machine
        if machine is None or node.stray:
            return
        kind, core, rounds = type(event), machine.raft._core, machine.rounds
        if kind is events.StateRestored or kind is events.RestoreFailed:
            self.operators.has_read(node)
        elif kind is events.EnvelopeReceived:
            self.recovery.delivered(node, event.neighbour)
        elif kind is events.ResultMissed:
            judge_missed(self.world, node, event)
        now = (machine, machine.replica.roster, core.commit_index, rounds.completed_round, rounds.digest)
        if core.role is Role.LEADER or now != self._looked_at.get(node.site):  # else what they look at is as it was
            self._looked_at[node.site] = now
            self.admission.after_step(node)
            self.agreement.after_step(node)
            self.rounds.after_step(node)
        self.counted.after_step(node, event)
        self.recovery.after_step(node, timer=kind is events.TimerFired)

    def executed(self, node: Node, effect: Any) -> None:
        """An effect is about to be executed."""
        kind = type(effect)
        if kind is effects.StartOver:
            self.world.runs.executed(node, effect)
        if node.stray:
            if node.stray == OLDER and kind is effects.SendEnvelope:
                self._sent(node, effect)  # what it promises is promised in its site's name
            elif node.stray == OLDER and kind is effects.Contribute:
                # Until somebody has seen the newer daemon the older one may be let in again (spec 2.14), and then it is
                # the member that a round counts. Both in one round would still be two contributions under one tag.
                self.rounds.contributed(node, effect)
            return
        if kind is not Persist and kind is not effects.SetTimer:  # which promises nothing
            self.agreement.look(node, final=False)
        if kind is effects.SendEnvelope:
            self._sent(node, effect)
        elif kind is Persist:
            self.agreement.persisted(node, effect)
            self.operators.persisted(node, effect)
        elif kind is effects.Contribute:
            self.rounds.contributed(node, effect)
            self.bounds.contributed(node, effect)
            self.counted.contributed(node, effect)
        elif kind is effects.OpenRound:
            self.rounds.opened(node, effect)
            self.bounds.opened(node, effect)
        elif kind is effects.DeliverResult:
            self.rounds.delivered(node, effect.round)
        elif kind is effects.LoadCheckpoint:
            self.operators.reads(node)
        elif kind is effects.AnswerRequest:
            self.operators.answered(node, effect)
        elif kind is effects.Record:
            self.leaves.recorded(node, effect)
            judge_drift(self.world, node, effect)
            if effect.kind == "split":
                self.fail(1, f"{node.name} takes its log for another one than that of {effect.subject}")
        elif kind is effects.StopDaemon and not effect.again:
            self.leaves.stopped(node, effect)

    def _sent(self, node: Node, effect: effects.SendEnvelope) -> None:
        if effect.envelope.run and cannot_read(self.world, effect.neighbour):
            self.fail(8, f"{node.name} sends {effect.neighbour} of the former release a word that names the run")
        if effect.envelope.source != node.site:
            return  # handed on for another site, which was judged for it
        kind = type(effect.envelope.message)
        if kind is RaftEnvelope:
            self.agreement.sent(node, effect)
            self.admission.sent(node, effect)
        elif kind in (LeaveRequest, LeaveAnswer):
            self.leaves.sent(node, effect)

    # -- the engines

    def reduced(self, node: Node, event: events.ReduceFinished, result: Result) -> None:
        """A round is done in a site's engine: what its chunks are made of."""
        if node.stray:
            return
        members = self.rounds.views[event.tag.epoch].members if event.tag.epoch in self.rounds.views else ()
        if members and len(members) < node.world.floor_sites:
            self.fail(3, f"round {event.tag.round} was done though {len(members)} are too few for the run's founder")
        self.rounds.reduced(node, event, result)
        self.counted.reduced(event.tag, event.weights)
        if self.rounds.era_of(event.tag.epoch) is self.rounds.eras[-1]:
            self.operators.round_done(event.tag.round)

    def bulk_sent(self, node: Node, destination: str, frame: Frame) -> None:
        if node.stray:
            return
        self.admission.bulk_sent(node, destination, frame)

    def accused(self, node: Node, site: str, reason: str) -> None:
        """Invariant 8: nobody breaks a rule here unless a fault made it, and so no link may end for that."""
        self.fail(8, f"{node.name} closes its link to {site}, which did nothing wrong: {reason}")

    def block_spoilt(self, node: Node) -> None:
        """It sends a block whose bytes changed after they were hashed."""
        self._spoilers.add(node.site)

    def source_dropped(self, node: Node, source: str, *, wrong: bool) -> None:
        """Invariant 4: a source is said to have sent wrong bytes only if it has."""
        if wrong and self.world.nodes[source].bulk is not None and source not in self._spoilers:
            self.fail(4, f"{node.name} takes right bytes of {source} for wrong ones")

    # -- the worker

    def training(self, node: Node, number: int, epoch: int) -> None:
        if node.stray:
            return
        self.counted.trains(node, epoch)
        self.rounds.training(node, number)

    def loaded(self, node: Node, number: int, state: str, epoch: int) -> None:
        if node.stray:
            return
        self.rounds.loaded(node, number, state, epoch)

    def applied(self, node: Node, number: int, digest: str, state: str, before: str) -> None:
        if node.stray:
            return
        self.rounds.applied(node, number, digest, state, before)

    # -- the network

    def delivered(self, node: Node, source: str) -> None:
        if node.stray:
            return
        self.recovery.delivered(node, source)

    def connected(self, one: str, other: str) -> None:
        self.recovery.connected(one, other)

    def before_replay(self, node: Node, *, bulk: bool = False) -> tuple[Any, ...]:
        return bulk_fingerprint(node) if bulk else fingerprint(node)

    def replayed(self, node: Node, before: tuple[Any, ...], out: list[Any]) -> None:
        self.replays.replayed(node, before, out)

    def bulk_replayed(self, node: Node, before: tuple[Any, ...]) -> None:
        self.replays.bulk_replayed(node, before)
