"""The sending side of state transfers at one site: which joiner wants which blocks of which snapshot.

Driven by the replication engine, which streams what `next_block` names. A joiner may ask before the snapshot is taken:
it is told to wait, and what it asked for is remembered. Several joiners can be served at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chaos_protocols.bulk import BlockDrop, BlockGone, BlockWait, BlockWant
from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.transfer.effects import SendHeader, SourceEffect, StreamBlocks

RANGES_WANTED_MAX = 1024
"""Ranges that a joiner may have asked for and not got: it asks for a few at a time."""

RELEASED_REMEMBERED = 64
"""Transfers whose joiner is told that the snapshot is gone rather than to wait."""


@dataclass(slots=True)
class _Joiner:
    transfer: str
    wants: deque[BlockWant] = field(default_factory=deque)
    position: int = 0
    """Where the first want goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes [start, stop) of the snapshot of `transfer`. `ticket`: see `TransferSource.is_wanted`."""

    transfer: str
    start: int
    stop: int
    ticket: int


class TransferSource:
    """See the module."""

    def __init__(self) -> None:
        self._served: dict[str, tuple[SiteId, int]] = {}
        self._released: deque[str] = deque(maxlen=RELEASED_REMEMBERED)
        self._joiners: dict[SiteId, _Joiner] = {}
        self._tickets: dict[SiteId, int] = {}

    def serve(self, transfer: str, joiner: SiteId, size_bytes: int) -> list[SourceEffect]:
        """The snapshot is there. Raises LocalProtocolError for a transfer that is served to somebody else."""
        if self._served.get(transfer, (joiner, 0))[0] != joiner:
            raise LocalProtocolError(f"transfer {transfer} is served to {short(self._served[transfer][0])} already")
        self._served[transfer] = (joiner, size_bytes)
        for site in [site for site, asked in self._joiners.items() if asked.transfer == transfer and site != joiner]:
            self._forget(site)  # it asked early for a state that is not meant for it
        waiting = self._joiners.get(joiner)
        if waiting is None or waiting.transfer != transfer:
            return []
        if any(want.stop > size_bytes for want in waiting.wants):
            del self._joiners[joiner]
            return [SendHeader(site=joiner, header=BlockGone(transfer=transfer))]
        return [StreamBlocks(joiner=joiner)]

    def release(self, transfer: str) -> list[SourceEffect]:
        """The snapshot goes away. Nothing of it is sent any more."""
        served = self._served.pop(transfer, None)
        self._released.append(transfer)
        effects: list[SourceEffect] = []
        for joiner in [site for site, wanted in self._joiners.items() if wanted.transfer == transfer]:
            self._forget(joiner)
            if served is None or served[0] == joiner:
                effects.append(SendHeader(site=joiner, header=BlockGone(transfer=transfer)))
        return effects

    def link_lost(self, site: SiteId) -> None:
        """It asks again over its next link."""
        self._forget(site)

    def received(self, site: SiteId, header: BlockWant | BlockDrop) -> list[SourceEffect]:
        """Raises RemoteProtocolError."""
        if isinstance(header, BlockDrop):
            wanted = self._joiners.get(site)
            if wanted is not None and wanted.transfer == header.transfer:
                self._forget(site)
            return []
        served = self._served.get(header.transfer)
        if header.transfer in self._released and served is None:
            return [SendHeader(site=site, header=BlockGone(transfer=header.transfer))]
        self._require(header.start < header.stop, site, "a range that is wanted has at least one byte")
        if served is not None:
            self._require(served[0] == site, site, "a state is given to the joiner of its plan only")
            self._require(header.stop <= served[1], site, "a range that is wanted lies within the state")
        wanted = self._joiners.get(site)
        if wanted is None or wanted.transfer != header.transfer:
            self._forget(site)
            wanted = self._joiners[site] = _Joiner(transfer=header.transfer)
        self._require(len(wanted.wants) < RANGES_WANTED_MAX, site, f"at most {RANGES_WANTED_MAX} ranges at a time")
        wanted.wants.append(header)
        if served is None:
            return [SendHeader(site=site, header=BlockWait(transfer=header.transfer))]
        return [StreamBlocks(joiner=site)]

    def next_block(self, joiner: SiteId) -> Block | None:
        """The next block to send to this joiner; it counts as sent."""
        wanted = self._joiners.get(joiner)
        if wanted is None or wanted.transfer not in self._served or not wanted.wants:
            return None
        want = wanted.wants[0]
        start = max(wanted.position, want.start)
        stop = min(start + want.block_bytes, want.stop)
        wanted.position = stop
        if stop == want.stop:
            wanted.wants.popleft()
            wanted.position = 0
        return Block(transfer=wanted.transfer, start=start, stop=stop, ticket=self._tickets.get(joiner, 0))

    def is_wanted(self, joiner: SiteId, block: Block) -> bool:
        """Still: between taking a block and sending it the joiner may have dropped it, or the snapshot gone."""
        return block.ticket == self._tickets.get(joiner, 0) and block.transfer in self._served

    def _forget(self, joiner: SiteId) -> None:
        if self._joiners.pop(joiner, None) is not None:
            self._tickets[joiner] = self._tickets.get(joiner, 0) + 1

    def _require(self, holds: bool, site: SiteId, rule: str) -> None:
        if not holds:
            raise RemoteProtocolError(f"site {short(site)} broke a rule of state transfer: {rule}")
