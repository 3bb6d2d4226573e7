"""A simulated training process, and what it trains."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos_protocols import events
from chaos_protocols.agreement.roster import ModelFacts
from tests.simulator.contents import Region

BLOCK_S = 0.0005
"""A source's own time for a block of a state, on a link that is no bottleneck."""
STATE_BYTES = (3 << 20) + (1 << 16)
"""Three cells and a short one: a dozen blocks, from up to three sources."""
MODEL = ModelFacts(spec_digest="ab" * 16, state_bytes=STATE_BYTES, shard_bytes=1 << 16)


LOST = "made anew"
"""What lies where something of a state was."""


@dataclass
class Worker:
    """A training process: computes, contributes, applies. Its state is the chain of all results it has applied."""

    round: int = 0
    state: str = "initial"
    drift: str = ""
    training: bool = False
    snapshot_due: int | None = None
    number: int = 0
    updating: bool = False
    attempt: int = 0
    """The newest computation; one that was begun before counts for nothing."""
    model: ModelFacts = MODEL
    region: Region = field(default_factory=lambda: Region(STATE_BYTES))
    handed: bool = False
    """A daemon had its region before."""
    part: int = 0
    """It has lost a part of its state (`lost`), the rest is that of the end of this round; 0: it has lost nothing."""
    lost: tuple[int, int] = (0, 0)
    astray: bool = False
    """Its part is of a history that was given up: what it makes of it, hashes find out (spec 11.18)."""

    @property
    def reached(self) -> int:
        """The end of which round what it has belongs to."""
        return self.part or self.round

    def advance(self, number: int) -> None:
        """It has applied the result of that round."""
        self.updating = False
        if self.part:
            self.part = number
        else:
            self.round = number

    def has_loaded(self, number: int) -> None:
        """It has a whole state."""
        self.round, self.part, self.training, self.astray = number, 0, False, False

    def write(self, word: str) -> None:
        """What it has, into its region."""
        self.region.put(word)
        if self.part:
            self.region.write(((*self.lost, LOST),))

    def hello(self, contribution_bytes: int) -> events.WorkerReady:
        """To a daemon, which has its region from now on."""
        said = {"round": self.round, "contribution_bytes": contribution_bytes, "damaged_round": self.part}
        return events.WorkerReady(model=self.model, held=self.hand_over(), **said)

    def hand_over(self) -> bool:
        """A daemon has its region from now on. Whether one had it before."""
        handed, self.handed = self.handed, True
        return handed
