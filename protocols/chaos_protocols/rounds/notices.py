"""What the rounds of a site have to say to those who look after it."""

from __future__ import annotations

import msgspec

from chaos_protocols.names import SiteId


class RoundCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """Notice: the result of `round` is here; who took part with which weight."""

    round: int
    epoch: int
    digest: str
    weights: tuple[tuple[SiteId, float], ...]


class StateLost(msgspec.Struct, frozen=True, kw_only=True):
    """Notice: this site cannot catch up by applying results; its state must be replaced. `outrun`: since the rounds are
    faster than it."""

    reason: str
    outrun: bool = False


class StatesDiffer(msgspec.Struct, frozen=True, kw_only=True):
    """The states of `round` differ in `array`. `outvoted`: those that differ from most, who are `majority`."""

    round: int
    array: str
    outvoted: tuple[SiteId, ...]
    majority: tuple[SiteId, ...]


class NothingToClipAround(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's part of `round` is left out: it would be clipped around the result before, which is not here."""

    round: int


class PartGivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of the worker's part of `round` have left, and the rest never comes: the round will be void."""

    round: int


RoundNotice = RoundCompleted | StateLost | StatesDiffer | NothingToClipAround | PartGivenUp
