"""The sending side of state transfers at one site: which joiner wants which blocks of which snapshot.

Driven by the replication engine, which streams what `next_item` names. A joiner may ask before the snapshot is taken:
it is told to wait, and what it asked for is remembered. Several joiners can be served at once. A joiner that holds
something already tells hashes with its wants: cells that are the same here are not sent. Another source's joiner may
ask for hashes only (`verify = "witness"`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.names import SiteId, short
from chaos_protocols.state.transfer.effects import SendHeader, SourceEffect, StreamBlocks
from chaos_protocols.state.transfer.ranges import cut
from chaos_protocols.wire.bulk import (
    BLOCK_BYTES_MAX,
    CELL_BYTES,
    HASH_BYTES,
    BlockDrop,
    BlockGone,
    BlockReady,
    BlockSame,
    BlockWait,
    BlockWant,
    WantHeader,
    WitnessHash,
    WitnessWant,
)

RANGES_WANTED_MAX = 1024
"""Ranges that a joiner may have asked for and not got: it asks for a few at a time."""

RELEASED_REMEMBERED = 64
"""Transfers whose joiner is told that the snapshot is gone rather than to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes [start, stop) of the snapshot of `transfer`, to be hashed (`hash`: is known already) and sent. `ticket`:
    see `TransferSource.is_wanted`."""

    transfer: str
    start: int
    stop: int
    ticket: int
    hash: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Bytes to be hashed and not sent: tell the hash by `TransferSource.hashed`. `have`: what the joiner holds there;
    without it, it wants the hash as a witness's."""

    transfer: str
    start: int
    stop: int
    ticket: int
    block_bytes: int = 0
    have: bytes = b""


@dataclass(slots=True)
class _Joiner:
    transfer: str
    ticket: int
    """Of no other one: what is taken of it is wanted for as long as this one is here."""
    wants: deque[BlockWant] = field(default_factory=deque)
    position: int = 0
    """Where the first want goes on."""
    different: deque[Block] = field(default_factory=deque)
    """Blocks of cells that were compared."""
    witnessed: deque[WitnessWant] = field(default_factory=deque)

    @property
    def asked(self) -> int:
        return len(self.wants) + len(self.witnessed)


class TransferSource:
    """See the module."""

    def __init__(self) -> None:
        self._served: dict[str, tuple[SiteId, int]] = {}
        self._released: deque[str] = deque(maxlen=RELEASED_REMEMBERED)
        self._joiners: dict[SiteId, _Joiner] = {}
        self._tickets_given = 0
        self._told_to_wait: dict[SiteId, str] = {}

    def serve(self, transfer: str, joiner: SiteId, size_bytes: int) -> list[SourceEffect]:
        """The snapshot is there. Raises LocalProtocolError for a transfer that is served to somebody else."""
        if self._served.get(transfer, (joiner, 0))[0] != joiner:
            raise LocalProtocolError(f"transfer {transfer} is served to {short(self._served[transfer][0])} already")
        self._served[transfer] = (joiner, size_bytes)
        for site in [site for site, asked in self._joiners.items() if asked.transfer == transfer and site != joiner]:
            self._forget(site)  # it asked early for a state that is not meant for it
        told_to_wait = self._told_to_wait.pop(joiner, None) == transfer
        waiting = self._joiners.get(joiner)
        if waiting is None or waiting.transfer != transfer:
            return [SendHeader(site=joiner, header=BlockReady(transfer=transfer))] if told_to_wait else []
        if max([0, *(want.stop for want in waiting.wants), *(one.stop for one in waiting.witnessed)]) > size_bytes:
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
            assert served is None or served[0] == joiner  # nobody else's wants are kept
            effects.append(SendHeader(site=joiner, header=BlockGone(transfer=transfer)))
        return effects

    def link_lost(self, site: SiteId) -> None:
        """It asks again over its next link."""
        self._told_to_wait.pop(site, None)
        self._forget(site)

    def received(self, site: SiteId, header: WantHeader) -> list[SourceEffect]:
        """Raises RemoteProtocolError."""
        if isinstance(header, BlockDrop):
            wanted = self._joiners.get(site)
            if wanted is not None and wanted.transfer == header.transfer:
                self._forget(site)
            return []
        served = self._served.get(header.transfer)
        if header.transfer in self._released and served is None:
            return [SendHeader(site=site, header=BlockGone(transfer=header.transfer))]
        self._check(site, header)
        if served is not None:
            self._require(served[0] == site, site, "a state is given to the joiner of its plan only")
            self._require(header.stop <= served[1], site, "a range that is wanted lies within the state")
        wanted = self._joiners.get(site)
        if wanted is None or wanted.transfer != header.transfer:
            self._forget(site)
            wanted = self._joiners[site] = _Joiner(transfer=header.transfer, ticket=self._tickets_given)
            self._tickets_given += 1
        self._require(wanted.asked < RANGES_WANTED_MAX, site, f"at most {RANGES_WANTED_MAX} ranges at a time")
        if isinstance(header, WitnessWant):
            wanted.witnessed.append(header)
        else:
            wanted.wants.append(header)
        if served is None:
            self._told_to_wait[site] = header.transfer
            return [SendHeader(site=site, header=BlockWait(transfer=header.transfer))]
        return [StreamBlocks(joiner=site)]

    def next_item(self, joiner: SiteId) -> Block | Comparison | None:
        """What is to be hashed, and sent, next for this joiner; it counts as sent."""
        wanted = self._joiners.get(joiner)
        if wanted is None or wanted.transfer not in self._served:
            return None
        ticket = wanted.ticket
        if wanted.witnessed:
            asked = wanted.witnessed.popleft()
            return Comparison(transfer=wanted.transfer, start=asked.start, stop=asked.stop, ticket=ticket)
        if wanted.different:
            return wanted.different.popleft()
        if not wanted.wants:
            return None
        want = wanted.wants[0]
        start = max(wanted.position, want.start)
        first = (start - want.start) // CELL_BYTES * HASH_BYTES
        have = want.have[first : first + HASH_BYTES]
        _, stop = next(cut(start, want.stop, CELL_BYTES if have else want.block_bytes))
        wanted.position = stop
        if stop == want.stop:
            wanted.wants.popleft()
            wanted.position = 0
        if have:
            return Comparison(
                transfer=wanted.transfer,
                start=start,
                stop=stop,
                ticket=ticket,
                block_bytes=want.block_bytes,
                have=have,
            )
        return Block(transfer=wanted.transfer, start=start, stop=stop, ticket=ticket)

    def hashed(self, joiner: SiteId, item: Comparison, digest: bytes) -> list[SourceEffect]:
        """The hash of what was to be compared."""
        wanted = self._joiners.get(joiner)
        if wanted is None or not self.is_wanted(joiner, item):
            return []
        if not item.have:
            told = WitnessHash(transfer=item.transfer, start=item.start, stop=item.stop, hash=digest)
            return [SendHeader(site=joiner, header=told)]
        if item.have == digest:
            return [SendHeader(site=joiner, header=BlockSame(transfer=item.transfer, start=item.start))]
        whole = item.stop - item.start <= item.block_bytes
        for start, stop in cut(item.start, item.stop, item.block_bytes):
            wanted.different.append(
                Block(
                    transfer=item.transfer,
                    start=start,
                    stop=stop,
                    ticket=item.ticket,
                    hash=digest if whole else b"",
                )
            )
        return [StreamBlocks(joiner=joiner)]

    def is_wanted(self, joiner: SiteId, item: Block | Comparison) -> bool:
        """Still: between taking an item and sending it the joiner may have dropped it, or the snapshot gone."""
        wanted = self._joiners.get(joiner)
        return wanted is not None and item.ticket == wanted.ticket and item.transfer in self._served

    def _check(self, site: SiteId, header: BlockWant | WitnessWant) -> None:
        self._require(header.start < header.stop, site, "a range that is wanted has at least one byte")
        if isinstance(header, WitnessWant):
            small = header.stop - header.start <= BLOCK_BYTES_MAX
            self._require(small, site, f"at most {BLOCK_BYTES_MAX} bytes are hashed at a time")
            return
        self._require(header.block_bytes.bit_count() == 1, site, "the size of a block is a power of two")
        if header.have:
            cells = -(-(header.stop - header.start) // CELL_BYTES)
            fits = header.start % CELL_BYTES == 0 and len(header.have) == cells * HASH_BYTES
            self._require(fits, site, "what a joiner has is told by one hash for each cell")

    def _forget(self, joiner: SiteId) -> None:
        """What it asked for, and with that what was taken of it and is not sent yet."""
        self._joiners.pop(joiner, None)

    def _require(self, holds: bool, site: SiteId, rule: str) -> None:
        if not holds:
            raise RemoteProtocolError(f"site {short(site)} broke a rule of state transfer: {rule}")
