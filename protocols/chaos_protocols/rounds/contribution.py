"""What this site gives to a round: its worker's part, weight 0, or nothing yet (spec 9.4)."""

from __future__ import annotations


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
        self._offered: tuple[int, float] | None = None

    def offer(self, round_number: int, weight: float) -> None:
        """The worker's part lies in the arena; weight 0: it gives nothing, and waits for the result."""
        self._offered = (round_number, weight)

    def withdraw(self) -> None:
        """What lies in the arena counts for no round any more."""
        self._offered = None

    def need(self, round_number: int | None) -> None:
        """That round waits for this site's worker; None: none does."""
        self.needed_in = round_number

    def fence(self, round_number: int | None) -> None:
        """Give nothing from that round on; None: the fence is lifted."""
        self.fence_round = round_number

    def begin(self) -> None:
        """The run goes on from another round: nothing was given in it."""
        self.given_round = 0
        self._offered = None

    def round_ended(self) -> bool:
        """The round that was open is complete, or stopped. Whether the worker has given nothing to it: that counted for
        this one tag, and should the round begin again the worker may have something to give."""
        skipped = self.given and self._offered is not None and self._offered[1] == 0
        self.given = False
        if skipped:
            self._offered = None
        return skipped

    def give(self, round_number: int, *, active: bool) -> tuple[float, bool] | None:
        """Weight, and whether bytes lie in the arena; None: not now. What is returned counts as given."""
        if self.fence_round is not None and round_number >= self.fence_round:
            return None
        part: tuple[float, bool]
        if self._offered is not None and self._offered[0] == round_number:
            part = (self._offered[1], self._offered[1] > 0)
        elif not active and round_number != self.needed_in:
            part = (0.0, False)
        else:
            return None
        self.given = True
        self.given_round = max(self.given_round, round_number)
        return part
