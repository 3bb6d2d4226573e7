"""What this site gives to a round: its worker's part, at once or in pieces, weight 0, or nothing yet (spec 9.4,
9.38)."""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.effects import Contribute
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.plans import Tag


@dataclass(slots=True)
class GivenPart:
    """What is given now. `ready_bytes`: of it so many are in the arena; None: all. `given_up`: the rest of a part that
    was begun never comes."""

    weight: float
    has_bytes: bool
    ready_bytes: int | None = None
    given_up: bool = False

    def given(self, tag: Tag, bounds: Bounds, check: bytes) -> Contribute:
        """In a run with these bounds; `check`: what this site says of its state."""
        weight, ready = bounds.weighed(self.weight), self.ready_bytes
        return Contribute(tag=tag, weight=weight, has_bytes=self.has_bytes, check=check, ready_bytes=ready)


NOTHING = GivenPart(0.0, False)


class OwnContribution:
    """See the module. `RoundMachine` says which round is open; here it is said whether this site gives to it now."""

    def __init__(self) -> None:
        self.given = False
        """To the round that is open."""
        self.given_round = 0
        """The newest that this site ever gave to, since it began."""
        self.needed_in: int | None = None
        """The round that waits for this site's worker: weight 0 will not do."""
        self.fence_round: int | None = None
        """A planned change is under way: nothing is given from this round on until its fate is known."""
        self.held_from: int | None = None
        """The run waits for a joiner: nothing is given from this round on."""
        self.stopped = False
        """This site goes: what its worker has now is to be on its disk."""
        self.begun = 0.0
        """Weight of the part of which only pieces were given to the round that is open; 0: none was."""
        self._offered: tuple[int, float] | None = None
        self._pieces: tuple[int, float, int] | None = None
        """Round, weight and bytes of what the worker has so far."""
        self._told_bytes = 0

    def offer(self, round_number: int, weight: float, ready_bytes: int | None = None) -> None:
        """The worker's part lies in the arena, or its first `ready_bytes`. Weight 0: it gives nothing, and waits
        for the result."""
        if ready_bytes is None:
            self._offered = (round_number, weight)
        else:
            self._pieces = (round_number, weight, ready_bytes)

    def withdraw(self) -> None:
        """What lies in the arena counts for no round any more."""
        self._offered = self._pieces = None

    def need(self, round_number: int) -> None:
        """That round waits for this site's worker."""
        self.needed_in = round_number

    def worker_stops(self) -> None:
        """No round waits for it, and of what it has not given whole nothing more comes."""
        self.needed_in = self._pieces = None

    def fence(self, round_number: int | None) -> None:
        """Give nothing from that round on; None: the fence is lifted."""
        self.fence_round = round_number

    def hold(self, round_number: int | None) -> None:
        """Give nothing from that round on, for a joiner's sake; None: go on."""
        self.held_from = round_number

    def stop(self, stopped: bool) -> None:
        """Give nothing more; False: go on."""
        self.stopped = stopped

    def is_held(self, round_number: int) -> bool:
        """Whether nothing is given to that round for now, whatever the worker has for it."""
        gates = (self.fence_round, self.held_from)
        return self.stopped or any(gate is not None and round_number >= gate for gate in gates)

    def begin(self) -> None:
        """The run goes on from another round: nothing was given in it."""
        self.given_round = 0
        self._offered = self._pieces = None

    def round_ended(self) -> bool:
        """The round that was open is complete, or stopped. Whether the worker has given nothing to it: that counted for
        this one tag, and should the round begin again the worker may have something to give."""
        skipped = self.given and self._offered is not None and self._offered[1] == 0
        self.given, self.begun, self._told_bytes = False, 0.0, 0
        if skipped:
            self._offered = self._pieces = None
        return skipped

    def give(self, round_number: int, *, active: bool, pieces: bool) -> GivenPart | None:
        """None: nothing now. What is returned counts as given. `pieces`: a part may be given before it is whole."""
        if self.is_held(round_number):
            return None
        if self._offered is not None and self._offered[0] == round_number:
            return self._whole(round_number, self._offered[1])
        if not active and round_number != self.needed_in:
            return self._whole(round_number, 0.0)
        return self._some(round_number) if active and pieces else None

    def _whole(self, round_number: int, weight: float) -> GivenPart:
        """What was begun with one weight cannot be ended with another."""
        self.given, self.given_round = True, max(self.given_round, round_number)
        if self.begun and weight != self.begun:
            return GivenPart(0.0, False, given_up=True)
        return GivenPart(weight, weight > 0)

    def _some(self, round_number: int) -> GivenPart | None:
        if self._pieces is None or self._pieces[0] != round_number:
            return None
        _, weight, ready_bytes = self._pieces
        if ready_bytes <= self._told_bytes or (self.begun and weight != self.begun):
            return None
        self.begun, self._told_bytes = weight, ready_bytes
        self.given_round = max(self.given_round, round_number)
        return GivenPart(weight, True, ready_bytes)
