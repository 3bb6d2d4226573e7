"""Invariants 2, 3 and 4: what is applied, what is in it, and in which state it leaves a worker.

The run's history is a chain of *eras*: one begins with each committed decision about rounds (`RoundResolved`,
`SetRestorePoint`). The views of an era are all made with its decision or after it, so the epoch of a bulk tag names its
era, and within one era a round has one result, under whatever tag, for whatever site. A new era keeps the rounds up to
the one that was resolved; later ones are void. States are chains of results: the oracle computes them itself.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import fsum
from typing import TYPE_CHECKING, Any, NoReturn

from chaos_protocols import effects, events
from chaos_protocols.agreement.commands import RoundResolved, SetRestorePoint
from chaos_protocols.agreement.roster import Roster, View
from chaos_protocols.wire.plans import Tag
from tests.simulator.contents import TAINT, Numbers, digest_of, vector_digest
from tests.simulator.oracles_given import ROUNDS_KEPT, GivenParts
from tests.simulator.oracles_owed import OwedOracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.averaging import Result
    from tests.simulator.node import Node
    from tests.simulator.worker import Worker

    Fail = Callable[[int, str], NoReturn]

Life = tuple[str, int]


@dataclass(slots=True)
class Era:
    """`results`, `states`: of the rounds after `resolved_round`; `tags`: under which the results were averaged. An
    adopted era begins with the state of one worker."""

    index: int
    resolved_round: int
    adopted: bool
    previous: Era | None
    results: dict[int, str] = field(default_factory=dict)
    tags: dict[int, set[Tag]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    newest: int = 0
    chosen: str = ""
    """Whose state it begins with, if it is an adopted one, or follows one in which no round was done."""
    begun_s: float = 0.0

    def owner(self, number: int, *, state: bool = False) -> Era | None:
        """The era in which this round was, or will be, done; None: before the run took over a worker's state."""
        era: Era | None = self
        while era is not None and number <= era.resolved_round:
            if era.adopted:
                return era if state and number == era.resolved_round else None
            era = era.previous
        return era


class RoundsOracle:
    """See the module. `rounds_done`: the newest round of the present era that anybody has applied."""

    def __init__(self, fail: Fail, nodes: dict[str, Node]) -> None:
        self._fail, self._nodes = fail, nodes
        self.eras: list[Era] = []
        self._indices: list[int] = []
        self._left_after: dict[str, int] = {}
        self.parts = GivenParts(fail)
        self.views: dict[int, View] = {}
        self.completed: dict[Life, tuple[Era, int]] = {}
        self.rounds_done = 0
        self._done_of: dict[str, tuple[int, str, int]] = {}
        self._opened: dict[Life, Tag] = {}
        self._delivering: dict[str, tuple[Worker, int, Era, bool]] = {}
        self.owed = OwedOracle(fail)
        self._right: dict[int, tuple[Any, list[bytes]]] = {}

    # -- the agreed history

    def committed(self, index: int, command: Any, roster: Roster) -> None:
        for view in roster.views:
            self.views.setdefault(view.epoch, view)
        self._who_counts(index, roster)
        if isinstance(command, RoundResolved):
            self._resolved(index, command, roster)
        if isinstance(command, SetRestorePoint):
            self._adopted(index, command, roster)
        if isinstance(command, RoundResolved | SetRestorePoint) or not self.eras:
            previous = self.eras[-1] if self.eras else None
            adopted = not isinstance(command, RoundResolved)
            untouched = previous.chosen if previous is not None and not previous.newest else ""  # no round done since
            chosen = command.record.site if isinstance(command, SetRestorePoint) else untouched
            begun_s = max((node.world.now_s for node in self._nodes.values()), default=0.0)
            self.eras.append(Era(index, roster.resolved_round, adopted, previous, chosen=chosen, begun_s=begun_s))
            self._indices.append(index)
            self.rounds_done = min(self.rounds_done, roster.resolved_round)

    def _who_counts(self, index: int, roster: Roster) -> None:
        """Invariant 5: a round counts the members of the roster, and leavers up to their last round; nobody else."""
        if roster.resolving or not roster.views:
            return
        for gone in roster.departed:
            if gone.cause == "left":
                self._left_after[gone.site] = max(gone.last_round, self._left_after.get(gone.site, -1))
        members = roster.member_ids()
        if roster.views[-1].members != members:
            self._fail(5, f"after entry {index} {roster.views[-1].members} count in a round; the members are {members}")
        for view in roster.views[:-1]:
            for site in set(view.members) - set(members):
                # It may have come back and failed since: the roster knows its last life only.
                if self._left_after.get(site, -1) < view.first_round:
                    self._fail(
                        5, f"after entry {index} {site} counts in round {view.first_round}, but is not in the run"
                    )

    def era_of(self, epoch: int) -> Era:
        return self.eras[max(0, bisect_right(self._indices, epoch) - 1)]

    def era_at(self, node: Node) -> Era:
        """In which that site, as far as it knows, takes part, or did last: who has left still applies what it holds."""
        assert node.machine is not None
        epoch, incarnation = node.machine.roster.epoch, node.machine.incarnation
        for known in sorted((one for one in self.roster_at if one <= epoch), reverse=True):
            record = self.roster_at[known].record(node.site)  # type: ignore[arg-type]
            if record is not None and record.incarnation == incarnation:
                return self.era_of(known)
        return self.era_of(epoch)

    def result(self, era: Era, number: int) -> str | None:
        owner = era.owner(number)
        return None if owner is None else owner.results.get(number)

    def state(self, era: Era, number: int) -> str | None:
        owner = era.owner(number, state=True)
        return None if owner is None else owner.states.get(number)

    def _resolved(self, index: int, command: RoundResolved, roster: Roster) -> None:
        """Invariant 2: no survivor holds more than what was resolved (its answer was a promise), the digest is that of
        the round, and at most one round is done again: more only where every member counts later, and those who did
        them are gone."""
        era = self.eras[-1]
        known = self.result(era, command.round)
        if command.digest and known != command.digest:
            self._fail(2, f"entry {index} resolves round {command.round} as {command.digest}, its result is {known}")
        if command.round > max(era.newest, era.resolved_round):
            self._fail(2, f"entry {index} resolves round {command.round}, which nobody has done")
        for record in roster.sites:
            of_era, number = self.completed.get((record.site, record.incarnation), (None, 0))
            if of_era is era and number > command.round:
                self._fail(2, f"{record.name} has round {number}, but {command.round} was resolved as the last one")
        if command.holders and era.newest > command.round + 1:
            before = self.roster_at[max(epoch for epoch in self.roster_at if epoch < index)]
            if any(before.counts(site, command.round + 1) for site in roster.member_ids()):
                self._fail(2, f"round {era.newest} was done, {command.round} is resolved: more than one round is lost")

    def _adopted(self, index: int, command: SetRestorePoint, roster: Roster) -> None:
        """Invariant 2: the run takes over a state only where no member that trains is left. One that was chosen, and
        could not read its checkpoint in its time (13.6), may have read it while another one is chosen for it."""
        site, era = command.record.site, self.eras[-1] if self.eras else None
        for record in roster.sites:
            node = self._nodes[record.site]
            machine = node.machine
            if machine is None or machine.incarnation != record.incarnation or not machine.membership.begun:
                continue
            if record.site == site and command.links:
                continue
            has_state = machine.rounds.active or bool(machine.participation.absence.rests)
            trains = has_state and machine.rounds.worker_round is not None and record.site != site
            if era is not None and record.site == era.chosen and self._was_late(node, era, command):
                continue
            if trains and machine.roster.epoch >= self.eras[-1].index and not node.stopped:
                self._fail(2, f"entry {index} takes over the state of {site}, while {node.name} trains")

    def _was_late(self, node: Node, era: Era, command: SetRestorePoint) -> bool:
        """No round was done since it was chosen, its time was over when the other one was proposed, which is a moment
        before, and that one's state is no older. An operator's word is carried out meanwhile: that the site has begun
        to train may be under way."""
        if command.operator and self.rounds_done <= era.resolved_round:
            return True
        settings = node.world.settings
        over_s = era.begun_s + settings.transfer_stall_s - settings.failure_timeout_s
        return self.rounds_done <= era.resolved_round <= command.round and node.world.now_s >= over_s

    # -- what goes into a round

    def contributed(self, node: Node, effect: effects.Contribute) -> None:
        """Invariant 4: what a site gives was computed from the state that all have."""
        given = self.parts.gives(node, effect)
        if given is not None:
            self._is_from_the_state(node, effect.tag, given.token)

    def _is_from_the_state(self, node: Node, tag: Tag, token: tuple[Any, ...]) -> None:
        if token[0] != tag.round:
            self._fail(3, f"{node.name} gives what it computed for round {token[0]} to round {tag.round}")
        self._is_state(node, self.era_of(tag.epoch), tag.round - 1, token[2], "contributes from")

    def opened(self, node: Node, effect: effects.OpenRound) -> None:
        """Invariant 6: a member never goes back to a round, or an epoch, that it has opened a later one of."""
        assert node.machine is not None
        life = (node.site, node.machine.incarnation)
        newest = self._opened.get(life)
        if newest is not None and effect.member and effect.tag < newest:
            self._fail(6, f"{node.name} opens {effect.tag} after {newest}")
        self._opened[life] = max(effect.tag, newest) if newest is not None else effect.tag

    def reduced(self, node: Node, event: events.ReduceFinished, result: Result) -> None:
        """Invariant 3: exactly the members of the epoch, each with what it gave. Invariant 2: one result a round."""
        tag = event.tag
        view = self.views.get(tag.epoch)
        if view is None:
            self._fail(3, f"{node.name} has a result of epoch {tag.epoch}, which is not agreed")
        era = self.era_of(tag.epoch)
        if event.digest != vector_digest(result.chunks):
            self._fail(3, f"the digest of round {tag.round} at {node.name} is not that of its chunks")
        if node.site not in view.members:
            if self._is_void(node, tag.round):
                return
            known = self.result(era, tag.round)
            if known is not None or not self._may_be_first(node, era):
                if known != event.digest:
                    self._fail(2, f"{node.name} is handed {event.digest} as round {tag.round}; its result is {known}")
                return
        self._is_sum_of_what_was_given(node, event, result, view)
        owner = era.owner(tag.round)
        if owner is None:
            self._fail(2, f"{node.name} does round {tag.round} again, which was before the run's beginning")
        known = owner.results.setdefault(tag.round, event.digest)
        if known != event.digest:
            self._fail(2, f"{node.name} has {event.digest} as the result of round {tag.round}, others have {known}")
        owner.tags.setdefault(tag.round, set()).add(tag)
        owner.tags.pop(tag.round - ROUNDS_KEPT, None)
        lives = {site: one.incarnation for site, one in self.parts.given.get(tag, {}).items()}
        self.owed.counted(node, tag, result, era, lives)
        owner.newest = max(owner.newest, tag.round)
        owner.results.pop(tag.round - ROUNDS_KEPT, None)
        owner.states.pop(tag.round - ROUNDS_KEPT, None)

    def _may_be_first(self, node: Node, era: Era) -> bool:
        """Whether a listener may have a result that no member has. Each tree is finished elsewhere (spec 9.26): its
        parents in the trees may each lack another one, while it has all of them. What it gets is judged then like what
        a member gets, by its parts, and is the round's from there on: who has another one fails. It may not be of a
        history that its own roster says is over."""
        assert node.machine is not None
        return era is self.era_of(node.machine.roster.epoch)

    def _is_sum_of_what_was_given(self, node: Node, event: events.ReduceFinished, result: Result, view: View) -> None:
        """Each chunk anew from what left for the engines: each member's part once, divided by all weights."""
        tag = event.tag
        there = tuple(site for site, _ in event.weights)
        if there != view.members:
            self._fail(3, f"round {tag.round} of epoch {tag.epoch} has {there}, its members are {view.members}")
        for giver, part in self.parts.late(tag):
            self._is_from_the_state(giver, tag, part.token)
        given = self.parts.given.get(tag)
        if given is None:
            return
        for site, weight in event.weights:
            own = given.get(site)
            if own is None or weight != own.weight or own.ready is not None:
                self._fail(3, f"round {tag.round} counts {site} with the weight {weight:g}; it gave {own}")
        key = (tag, len(result.chunks))
        if self._right.get(tag.round, (None, ()))[0] != key:
            total = fsum(weight for _, weight in event.weights)
            parts = [(site, weight, given[site]) for site, weight in event.weights if weight]
            right = []
            for index in range(len(result.chunks)):
                tokens = ((site, weight, own.at(index), index) for site, weight, own in parts)
                right.append(Numbers(tuple(tokens), total))
            self._right = {tag.round: (key, [chunk.hash for chunk in right])}
        for index, right_hash in enumerate(self._right[tag.round][1]):
            found = result.chunks[index].exact()
            if found.hash != right_hash:
                self._fail(
                    3,
                    f"chunk {index} of round {tag.round} at {node.name} is not the sum of its parts: "
                    f"{[part[0] for part in found.parts]} over {found.total:g}",
                )

    # -- what a site has

    def _let_go(self, node: Node) -> None:
        """It counts from a round whose result it has not. A learner, which begins where the plan of a transfer says,
        forgets what it had listened to before: it promises nothing with that."""
        machine = node.machine
        assert machine is not None
        record = machine.roster.record(node.site)  # type: ignore[arg-type]
        if record is not None and record.incarnation == machine.incarnation and record.state == "learner":
            self.completed.pop((node.site, machine.incarnation), None)

    def after_step(self, node: Node) -> None:
        """Invariant 2: the last result that a site counts as done is the round's; after its promise it takes nothing
        more of the older epochs."""
        machine = node.machine
        assert machine is not None
        rounds = machine.rounds
        now = (rounds.completed_round, rounds.digest, machine.roster.epoch)
        if now == self._done_of.get(node.site):
            return
        before = self._done_of.get(node.site)
        self._done_of[node.site] = now
        if not rounds.digest:
            self._let_go(node)
            return
        if not self.eras or (before is not None and before[:2] == now[:2]):
            return
        era = self.era_of(machine.roster.epoch)
        known = self.result(era, rounds.completed_round)
        if known is not None and known != rounds.digest and not self._is_void(node, rounds.completed_round):
            self._fail(2, f"{node.name} holds {rounds.digest} as round {rounds.completed_round}, others have {known}")
        life = (node.site, machine.incarnation)
        self.completed[life] = (era, rounds.completed_round)
        later = next((one for one in self.eras if one.index > era.index), None)
        if later is None or later.adopted or rounds.completed_round <= later.resolved_round:
            return
        record = self._roster_of(later).record(node.site)  # type: ignore[arg-type]
        if record is not None and record.incarnation == machine.incarnation:
            self._fail(
                2, f"{node.name} takes round {rounds.completed_round} of the epoch that it had promised to have ended"
            )

    roster_at: dict[int, Roster]

    def _roster_of(self, era: Era) -> Roster:
        return self.roster_at[era.index]

    def _is_void(self, node: Node, number: int) -> bool:
        """The site was removed, does not know it, and the run was resolved before this round: whatever it has of it, it
        gets another state before it takes part again."""
        newest = self.roster_at[max(self.roster_at)]
        record = newest.record(node.site)  # type: ignore[arg-type]
        there = record is not None and record.incarnation == node.disk.incarnation
        return not there and number > newest.resolved_round

    # -- what the workers do

    def delivered(self, node: Node, number: int) -> None:
        """Invariant 2: a worker is given the results in order, each once; the bytes are those of the round."""
        worker = node.listening
        if worker is None or node.bulk is None:
            return
        era = self.era_at(node)
        if worker.reached != number - 1:
            self._fail(2, f"{node.name} is to apply round {number} to the state of round {worker.reached}")
        held = node.bulk.averaging.results.get(number)
        if held is None:
            self._fail(2, f"{node.name} is to apply round {number}, whose result it has dropped")
        found, known = vector_digest(held.chunks), self.result(era, number)
        if held.digest != found:
            self._fail(2, f"{node.name} applies {found} as round {number}, though its digest says {held.digest}")
        if known is not None and found != known and not self._is_void(node, number):
            self._fail(2, f"{node.name} applies {found} as round {number}, others have {known}")
        finite = not any(TAINT in part[2] for chunk in held.chunks for part in chunk.parts)
        self._delivering[node.site] = (worker, number, era, finite)

    def applied(self, node: Node, number: int, digest: str, state: str, before: str) -> None:
        """Invariant 4: the state is the chain of all results that are finite, the same for everybody."""
        worker, due, era, finite = self._delivering.pop(node.site, (None, 0, None, True))
        if worker is None or worker is not node.worker or due != number or era is None:
            self._fail(2, f"a worker of {node.name} applies round {number}, which it was not given")
        if state != (digest_of((before, digest)) if finite else before):
            self._fail(4, f"{node.name} has a state after round {number} that does not follow from its result")
        if worker.astray:
            return
        self._is_state(node, era, number - 1, before, "applied to")
        self._is_state(node, era, number, state, "has reached")
        if era is self.eras[-1]:
            self.rounds_done = max(self.rounds_done, number)

    def is_given_up(self, number: int, state: str) -> bool:
        """Whether this state of the end of that round, which a worker has reached, is none of the run's any more."""
        owner = self.eras[-1].owner(number, state=True) if self.eras else None
        return owner is None or owner.states.get(number) != state

    def loaded(self, node: Node, number: int, state: str, epoch: int) -> None:
        """Invariant 4: what a joiner loads is the members' state of the round that was agreed. A script that hangs does
        so when it goes on: `epoch` is the one in which it was told to."""
        self._is_state(node, self.era_of(epoch), number, state, "loads")

    def training(self, node: Node, number: int) -> None:
        """Invariant 4: who begins to contribute is level, and has the members' state."""
        assert node.machine is not None
        worker = node.worker
        if worker is None or not node.machine.rounds.active:
            return  # taken back in the same step: later entries of the log say otherwise
        if worker.round != number - 1:
            self._fail(4, f"{node.name} is to train for round {number} in the state of round {worker.round}")
        self._is_state(node, self.era_at(node), worker.round, worker.state, "trains from")

    def _is_state(self, node: Node, era: Era, number: int, state: str, does: str) -> None:
        owner = era.owner(number, state=True)
        if owner is None:
            self._fail(4, f"{node.name} {does} a state of round {number}, which is before the run's beginning")
        known = owner.states.setdefault(number, state)
        if known != state:
            self._fail(4, f"{node.name} {does} another state of round {number} than the others have: {state[:200]}")
