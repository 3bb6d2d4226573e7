"""Who computes is counted (invariants 3 and 8): a part that lies ready is given to its round, a site of the run whose
worker answers is counted again within as many rounds as the rules for catching up allow, in the calm within a minute.

Judged from results and from what the workers do: a site may give weight 0 only while its worker has nothing for that
round, whatever its machine takes the worker for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from chaos_protocols import effects, events
from chaos_protocols.membership.catch_up import LAPS_WITHOUT_GAIN_MAX
from chaos_protocols.state.outrun import OUTRUN_MAX
from chaos_protocols.state.result_log import results_max
from chaos_protocols.wire.plans import Tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos_protocols.names import SiteId
    from tests.simulator.node import Node
    from tests.simulator.worker import Worker
    from tests.simulator.world import World

    Fail = Callable[[int, str], NoReturn]

TRANSFER_S = 3.0
"""So long one transfer takes at most, with what it takes to ask for it and to agree on it."""


def rounds_until_counted(contribution_bytes: int) -> int:
    """So many rounds may be done while a site gets the state: as often as it may be outrun before the rounds wait for
    it (spec 8.16), and once more, as many results come as may wait for a worker (12.4); and for each of the laps that
    may be in vain (12.5) no more than that."""
    return (OUTRUN_MAX + 1) * (1 + LAPS_WITHOUT_GAIN_MAX) * results_max(contribution_bytes)


class CountedOracle:
    """See the module. `worst`: the most rounds in a row without a site whose worker answered."""

    def __init__(self, fail: Fail, world: World) -> None:
        self._fail, self._world = fail, world
        self._offers: dict[str, tuple[Worker, int, int, int]] = {}
        """Of each site: whose part lies ready, which attempt of that worker it is, for which round, and since which
        entry the run has the state from which it was computed."""
        self._trains: dict[str, tuple[Worker, int]] = {}
        """Of each site: which worker was told to train, and since which entry the run had its state then."""
        self._nothing: dict[str, Tag] = {}
        """To which tag a site has given weight 0 in this step."""
        self._judged = (0, 0)
        self._missed: dict[str, tuple[int, float]] = {}
        """How many rounds in a row a site was not counted in, and when the first of them was done."""
        self._since: dict[str, int] = {}
        """How often each site was counted, from when it was asked (`begin`)."""
        self.worst = 0

    # -- a part that lies ready

    def trains(self, node: Node, epoch: int) -> None:
        """Its worker is told to, in that epoch."""
        if node.listening is not None:
            self._trains[node.site] = (node.listening, self._taken_over(epoch))

    def _taken_over(self, epoch: int) -> int:
        """The entry by which the run had taken over its state then; 0: none."""
        eras = [era.index for era in self._world.oracles.rounds.eras if era.adopted and era.index <= epoch]
        return eras[-1] if eras else 0

    def contributed(self, node: Node, effect: effects.Contribute) -> None:
        """What it tells its worker in the same step may come after it: judged when the step is over."""
        if not effect.weight and not effect.has_bytes:
            self._nothing[node.site] = effect.tag

    def after_step(self, node: Node, event: Any) -> None:
        """Invariant 3: nobody gives nothing while a part of that round lies ready. Once its site counts that round as
        done the part has had its round; where an earlier one is then agreed to stand, the site has fallen behind (spec
        10.9): another may have the state after the round that counted it."""
        contributed = type(event) is events.WorkerContributed
        if not contributed and node.site not in self._offers and node.site not in self._nothing:
            return
        machine = node.machine
        assert machine is not None
        worker = node.worker
        if worker is not None and contributed and event.weight and event.ready_bytes is None:
            trains, since = self._trains.get(node.site, (None, 0))
            since = since if trains is worker else self._taken_over(machine.roster.epoch)
            self._offers[node.site] = (worker, worker.attempt, event.round, since)
        offer = self._offers.get(node.site)
        if offer is not None and machine.rounds.completed_round >= offer[2]:
            del self._offers[node.site]
        tag = self._nothing.pop(node.site, None)
        if tag is None or not self._lies_ready(node, tag.round):
            return
        if offer is not None and offer[3] != self._taken_over(machine.roster.epoch):
            # Another state is the run's since its worker was told to train: it could not read its checkpoint in its
            # time, or an operator has decided meanwhile. It gets that one first, be it an equal one (spec 13.6, 13.9).
            return
        if machine.leaving:
            return  # its worker, which is to go, may go on for as long as it takes to be told
        if machine.roster.bounds_of(tag.round).clip_radius and not machine.rounds.digest:
            return  # it has no result to clip its part around, and says so (spec 19.6)
        self._fail(3, f"{node.name} gives nothing to round {tag.round}, though its worker's part of it lies ready")

    def _lies_ready(self, node: Node, number: int) -> bool:
        worker, attempt, offered, _ = self._offers.get(node.site, (None, 0, 0, 0))
        if worker is None or offered != number or worker is not node.listening or not node.odd.answers:
            return False
        if self._is_of_former_history(node, worker, number - 1):
            return False  # the run goes on from another state of that round since
        return worker.training and worker.attempt == attempt and worker.round == number - 1

    def _is_of_former_history(self, node: Node, worker: Worker, number: int) -> bool:
        rounds, machine = self._world.oracles.rounds, node.machine
        known = rounds.state(rounds.era_of(machine.roster.epoch), number) if machine is not None else None
        if known is not None or machine is None:
            return known != worker.state
        return any(era.states.get(number) == worker.state for era in rounds.eras)  # nobody has the present one yet

    # -- rounds without a site

    def reduced(self, tag: Tag, weights: tuple[tuple[SiteId, float], ...]) -> None:
        """Invariant 8: a round is done, here first; members and learners."""
        if (tag.epoch, tag.round) <= self._judged:
            return
        self._judged = (tag.epoch, tag.round)
        counted = {site for site, weight in weights if weight}
        for site in counted:
            self._since[site] = self._since.get(site, 0) + 1
        for site in self._inside():
            node = self._world.nodes[site]
            if site in counted or not self._could_catch_up(node, counted):
                self._missed.pop(site, None)
                continue
            missed, since_s = self._missed.get(site, (0, self._world.now_s))
            self._missed[site] = missed + 1, since_s
            self.worst = max(self.worst, missed + 1)
            limit, lasts_s = rounds_until_counted(node.contribution_bytes), self._world.now_s - since_s
            if missed >= limit and lasts_s > (OUTRUN_MAX + 1) * TRANSFER_S:
                self._fail(
                    8,
                    f"{node.name} is in the run with a worker, and is not counted for {missed} rounds, {lasts_s:.1f} s",
                )

    def _inside(self) -> list[SiteId]:
        roster = self._world.oracles.newest
        return [record.site for record in roster.sites] if roster is not None else []

    def _could_catch_up(self, node: Node, counted: set[SiteId]) -> bool:
        """Its daemon and its worker answer, and a neighbour has the state: nothing but the rules keeps it out."""
        machine = node.machine
        if self._world.muteness.site:
            return False  # that one hears nothing, and a transfer to it may hold up the others' until it is given up
        if machine is None or node.stopped or machine.leaving or node.listening is None or not node.odd.computes:
            return False
        return any(site in counted for site in node.connections) and not self._waits_its_turn(node)

    def _waits_its_turn(self, node: Node) -> bool:
        """Another site gets the state before, whose worker stands still: that transfer is given up in its time (spec
        7.9), which begins anew with a new scheduler."""
        roster = self._world.oracles.newest
        plan = roster.replication if roster is not None else None
        if plan is None or plan.joiner == node.site:
            return False
        other = self._world.nodes[plan.joiner]
        return other.hang.lasts or not other.odd.answers

    # -- in the calm

    def begin(self) -> None:
        """From here on everybody has to be counted."""
        self._since.clear()

    def uncounted(self) -> list[str]:
        """The names of the sites that were counted in no round since."""
        return [
            node.name
            for site, node in self._world.nodes.items()
            if not self._since.get(site) and not self._world.bans.is_out(node)
        ]
