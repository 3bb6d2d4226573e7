"""A simulated training process, and what it trains."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos_protocols.agreement.roster import ModelFacts
from tests.simulator.contents import Region

STATE_BYTES = (3 << 20) + (1 << 16)
"""Three cells and a short one: a dozen blocks, from up to three sources."""
MODEL = ModelFacts(spec_digest="ab" * 16, state_bytes=STATE_BYTES, shard_bytes=1 << 16)


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

    def hand_over(self) -> bool:
        """A daemon has its region from now on. Whether one had it before."""
        handed, self.handed = self.handed, True
        return handed
