"""With what the log of a run begins: at its first site, or at a site that makes a new run of a former one."""

from __future__ import annotations

from chaos_protocols.agreement.raft.effects import HardState
from chaos_protocols.agreement.raft.messages import Configuration, Snapshot
from chaos_protocols.names import SiteId


def bootstrap(site: SiteId, state: bytes = b"") -> tuple[HardState, Snapshot]:
    """What the founder of a run persists before its first start: a snapshot at index 1 with itself the only voter."""
    return founded_after(site, state, index=0, term=0, chain=b"")


def founded_after(site: SiteId, state: bytes, *, index: int, term: int, chain: bytes) -> tuple[HardState, Snapshot]:
    """The same after a log that ended so, and stands for nothing any more: numbers go on, so that none of the former
    run comes again. `chain`: the number of the log from there on (spec 5.25); empty: it has none."""
    alone = Configuration(voters=(site,), learners=())
    snapshot = Snapshot(index=index + 1, term=term + 1, configuration=alone, state=state, chain=chain)
    return HardState(term + 1, None), snapshot
