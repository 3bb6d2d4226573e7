"""What operators say is carried out as they have said it, or not at all; and their word is asked for where it must be.

Judged from what they said at which site and what they heard, from the log, and from what the sites really do:

- an entry that carries a request takes what this operator has named, once, unless he has heard that it is refused, or
  the run has gone on since he said so (10, spec 13.7);
- what an operator has given up is not taken again by the rules (10; in `oracles_restore`);
- who was chosen, and reads its checkpoint, is not passed over in the time that its disk may take (10, spec 13.6);
- what he hears is true: done is what the log has (8);
- whom most members' operators want out is not let in, nor is its state taken (5, spec 8.15).

When an entry was decided is the moment at which whoever led wrote it down first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from chaos_protocols import effects, events
from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.named_sites import sites_named
from chaos_protocols.names import SiteId
from chaos_protocols.wishes import BansChanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import Node
    from tests.simulator.worker import Worker
    from tests.simulator.world import World

    Fail = Callable[[int, str], NoReturn]

ENTRIES_KEPT = 4096
HEARD_S = 1.0
"""So long a word to the scheduler may be under way, when its answer to the same word has come back."""
GONE_ON_ROUNDS, GONE_ON_S = 3, 1.5
"""So many rounds, and for so long, are done in a run that has gone on: whoever leads has heard of that."""
BANNED_S = 5.0
"""So long most members have said that they want a site out, until whoever leads must have heard it."""
SAID_BY_OPERATORS = frozenset({events.RecoverRequested, BansChanged})
"""The events by which they speak."""
UNKNOWN = "not known here"
"""Says a site that is cut off."""
ANSWERED = re.compile(r"goes on from the state of round (\d+) ")


@dataclass(slots=True)
class Asked:
    """A request: where and when it was made, for which state (`round` 0: anew), and what has come of it."""

    at: str
    asked_s: float
    origin: str
    round: int
    refused_s: float | None = None
    why: str = ""
    entry: int = 0
    taken: int = 0
    """The entry that carried it out, and the round from which the run went on."""


@dataclass(slots=True)
class Reading:
    """A site loads a checkpoint for its worker."""

    incarnation: int
    worker: Worker | None
    since_s: float


class OperatorsOracle:
    """See the module."""

    def __init__(self, fail: Fail, world: World) -> None:
        self._fail, self._world = fail, world
        self.asked: dict[str, Asked] = {}
        self._decided_s: dict[tuple[int, int], float] = {}
        """When each entry was first written, by index and term."""
        self._leads_since_s: dict[int, float] = {}
        self._wanted: dict[str, dict[str, float]] = {}
        """Whom each site's operator wants out, and since when its present daemon says so."""
        self._taken_back_s: dict[tuple[str, str], float] = {}
        """When a site's operator has taken back that he wants another one out."""
        self._rounds: list[tuple[int, float]] = []
        """Rounds as they were first done, and when."""
        self._reading: dict[str, Reading] = {}
        self._chosen: tuple[str, int, float] | None = None
        """Who was chosen last, in which start, and when that was decided; None: a round was done since."""

    # -- what operators say and hear

    def started(self, node: Node) -> None:
        """Its daemon was told nothing yet, and reads nothing."""
        self._wanted.pop(node.site, None)
        self._reading.pop(node.site, None)

    def hears(self, node: Node, event: Any) -> None:
        """It is about to be handled: all that follows may follow at once."""
        if isinstance(event, events.RecoverRequested):
            self.asks(node, event)
        elif isinstance(event, BansChanged) and not node.stray:
            self.wants_out(node, event)

    def asks(self, node: Node, event: events.RecoverRequested) -> None:
        """An operator decides."""
        self.asked[event.request] = Asked(node.site, self._world.now_s, event.origin, event.round)

    def wants_out(self, node: Node, event: BansChanged) -> None:
        """Whom an operator wants out, all of them."""
        before = self._wanted.get(node.site, {})
        self._taken_back_s |= {(node.site, site): self._world.now_s for site in before if site not in event.sites}
        self._wanted[node.site] = {site: before.get(site, self._world.now_s) for site in event.sites}

    def answered(self, node: Node, effect: effects.AnswerRequest) -> None:
        """Invariant 8: he hears what is true."""
        asked = self.asked.get(effect.request)
        if asked is None:
            return  # of another kind
        if not effect.done:
            if UNKNOWN in effect.reason:
                return  # it may be carried out still, as long as the run stands (spec 13.7)
            asked.refused_s, asked.why = self._world.now_s, effect.reason
            if asked.entry:
                self._fail(
                    8,
                    f"{node.name} tells its operator that {effect.request} is not done ({effect.reason}), and entry "
                    f"{asked.entry} has carried it out",
                )
            return
        told = ANSWERED.search(effect.reason)
        if not asked.entry:
            self._fail(8, f"{node.name} tells its operator that {effect.request} is done, and no entry carries it")
        if told is None or int(told[1]) != asked.taken:
            self._fail(
                8,
                f"{node.name} tells its operator of {effect.request}: {effect.reason}; by entry {asked.entry} the run "
                f"went on from round {asked.taken}",
            )

    # -- what is done

    def persisted(self, node: Node, effect: Persist) -> None:
        """Entries are written: by whoever leads first."""
        now_s = self._world.now_s
        for entry in effect.entries:
            if self._decided_s.setdefault((entry.index, entry.term), now_s) == now_s:
                self._leads_since_s.setdefault(entry.term, now_s)
        while len(self._decided_s) > ENTRIES_KEPT:
            del self._decided_s[next(iter(self._decided_s))]

    def round_done(self, number: int) -> None:
        """By anybody, of the run as it stands."""
        if not self._rounds or self._rounds[-1][0] != number:
            self._rounds.append((number, self._world.now_s))
            del self._rounds[:-ENTRIES_KEPT]
        self._chosen = None

    def reads(self, node: Node) -> None:
        """It begins to load a checkpoint."""
        assert node.machine is not None
        self._reading[node.site] = Reading(node.machine.incarnation, node.worker, self._world.now_s)

    def has_read(self, node: Node) -> None:
        """It has, or cannot."""
        self._reading.pop(node.site, None)

    # -- what is agreed

    def committed(self, index: int, term: int, command: object, before: Roster, roster: Roster) -> None:
        """`before`: the roster to which it is applied."""
        decided_s = self._decided_s.get((index, term), self._world.now_s)
        for site in set(roster.site_ids()) - set(before.site_ids()):
            self._is_let_in(index, term, site, before, decided_s)
        if not isinstance(command, SetRestorePoint) or before.model is None:
            return
        site = command.record.site
        self._is_no_banned_ones(index, site, before, decided_s)
        if command.operator and command.operator != before.restored_by:
            self._carries_out(index, command, before, decided_s)
        else:
            self._passes_nobody_over(index, site, before, decided_s)
        self._chosen = (site, command.record.incarnation, decided_s)

    def _carries_out(self, index: int, command: SetRestorePoint, before: Roster, decided_s: float) -> None:
        """Invariant 10: an operator has said that, in these words, and his word holds still."""
        asked = self.asked.get(command.operator)
        if asked is None:
            self._fail(10, f"entry {index} rests on the word {command.operator} of an operator who has not said it")
        if asked.entry:
            self._fail(10, f"entry {index} carries {command.operator} out again, after entry {asked.entry}")
        asked.entry, asked.taken = index, command.round
        if command.round != asked.round:
            self._fail(10, f"entry {index} goes on from round {command.round}; {command.operator} names {asked.round}")
        site = command.record.site
        known = [(one.site, one.name) for one in (*before.sites, command.record)]
        if asked.origin and sites_named(asked.origin, known) != {site}:
            self._fail(10, f"entry {index} takes the state of {site}; {command.operator} names {asked.origin}")
        if asked.refused_s is not None and decided_s > asked.refused_s + HEARD_S:
            self._fail(
                10,
                f"entry {index} carries out {command.operator}, which was refused {decided_s - asked.refused_s:.1f} s "
                f"before: {asked.why}",
            )
        since = [at_s for _, at_s in self._rounds if asked.asked_s < at_s < decided_s]
        if len(since) >= GONE_ON_ROUNDS and since[-1] - asked.asked_s > GONE_ON_S:
            self._fail(
                10,
                f"entry {index} carries out {command.operator}, which is {decided_s - asked.asked_s:.1f} s old: "
                f"{len(since)} rounds were done since",
            )

    def _passes_nobody_over(self, index: int, site: str, before: Roster, decided_s: float) -> None:
        """Invariant 10: no other state is taken while who was chosen reads its own, in its time."""
        if self._chosen is None or self._chosen[0] == site:
            return
        chosen, incarnation, chosen_s = self._chosen
        reading, node, record = self._reading.get(chosen), self._world.nodes[chosen], before.record(SiteId(chosen))
        if reading is None or record is None or record.incarnation != incarnation or node.machine is None:
            return
        lives = reading.incarnation == node.machine.incarnation == incarnation and not node.stopped
        if not lives or reading.worker is None or reading.worker is not node.worker or reading.since_s > decided_s:
            return
        if decided_s < chosen_s + self._world.settings.transfer_stall_s:
            self._fail(
                10,
                f"entry {index} takes the state of {site}, though {node.name} was chosen {decided_s - chosen_s:.1f} s "
                f"before, and reads its checkpoint",
            )

    # -- who is wanted out

    def most_want_out(self, site: str, roster: Roster, since_s: float) -> bool:
        """More than half of the other members, all the time since then."""
        return _are_most(site, roster, lambda one: self._wanted.get(one, {}).get(site, since_s + 1) <= since_s)

    def is_wanted_out(self, site: str, roster: Roster) -> bool:
        """By so many that it may not be waited for: also where that was taken back a moment ago, as whoever leads may
        not have heard of it yet."""
        since_s = self._world.now_s - HEARD_S

        def wants(one: str) -> bool:
            return site in self._wanted.get(one, {}) or self._taken_back_s.get((one, site), since_s) > since_s

        return _are_most(site, roster, wants)

    def _is_no_banned_ones(self, index: int, site: str, before: Roster, decided_s: float) -> None:
        """Invariant 5: the run does not go on from its state; every member has said what it wants before (13.2)."""
        if site in before.banned or self.most_want_out(site, before, decided_s - BANNED_S):
            self._fail(5, f"entry {index} goes on from the state of {site}, which most members want out")

    def _is_let_in(self, index: int, term: int, site: str, before: Roster, decided_s: float) -> None:
        """Invariant 5: nor is it let in, by who leads long enough to have heard what they want."""
        leads_s = decided_s - self._leads_since_s.get(term, decided_s)
        if site in before.banned:
            self._fail(5, f"entry {index} lets {site} in, which is banned")
        if leads_s > BANNED_S and self.most_want_out(site, before, decided_s - BANNED_S):
            self._fail(5, f"entry {index} lets {site} in, which most members want out")


def _are_most(site: str, roster: Roster, wants: Callable[[str], bool]) -> bool:
    """Whether more than half of the other members want it."""
    others = [one for one in roster.member_ids() if one != site]
    return 2 * sum(map(wants, others)) > len(others)
