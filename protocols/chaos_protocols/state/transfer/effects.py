"""What the transfer machines ask of whoever runs them. Executed in the order of the list."""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import TransferHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeader:
    """A frame without payload. Where there is no link, drop it."""

    site: SiteId
    header: TransferHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckBlock:
    """Hash the block that came, then call `checked`: only then is it part of the state."""

    source: SiteId
    start: int
    stop: int
    hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDropped:
    """A source is used no more, and why; its part goes to the others. `wrong`: it sent bytes that fail their hash."""

    source: SiteId
    reason: str
    wrong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFetched:
    """Every byte is there and verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """No source is left. What is verified stays verified."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBlocks:
    """The source has blocks to send to this joiner: take them with `next_block` until there are none."""

    joiner: SiteId


JoinerEffect = SendHeader | CheckBlock | SourceDropped | StateFetched | FetchFailed
SourceEffect = SendHeader | StreamBlocks
