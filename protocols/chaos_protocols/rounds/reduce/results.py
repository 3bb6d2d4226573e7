"""Whole results handed from site to site: for one that lacks a result when a round is resolved, or that lags.

One machine per site plays both parts. Fetching: every holder named is asked whether it has the result of `round` with
this `digest`; the first that says so is pulled from, the others stay in reserve: if the link is lost, the holder lets
go of it, or what came has another digest, the next one goes on (after a wrong digest: from the start). Where several
have sent parts of what has another digest, nobody knows whose part is wrong: the last one is asked for all of it. A
holder that will have the result only later answers then. The digest was agreed by the roster, so it does not matter
who sends.

Driven by the reduce engine. Sources: spec 10.9; FlashRecovery III-E.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SITES_MAX, SiteId, short
from chaos_protocols.rounds.reduce.effects import (
    FetchedRef,
    HeldRef,
    ResultComplete,
    ResultEffect,
    ResultRefuted,
    ResultUnavailable,
    ResultVerified,
    SendBulk,
)
from chaos_protocols.wire.bulk import ResultData, ResultGone, ResultHeader, ResultHeld, ResultPull, ResultWant

WANTS_PENDING_MAX = 4
"""Results that one neighbour may wait for here: a site lacks one at a time; the oldest is forgotten first."""


@dataclass(slots=True)
class _Fetch:
    round: int
    digest: str
    chunk_counts: tuple[int, int]
    """Of the two cuts; the finer one last."""
    holders: set[SiteId]
    offers: list[SiteId] = field(default_factory=list)
    fine_at: set[SiteId] = field(default_factory=set)
    """Holders that have said that theirs is cut finely."""
    source: SiteId | None = None
    next: int = 0
    pulled_from: int = 0
    """Of what is here, the chunk from which on the present source has sent it."""
    fine: bool = False
    """How what is here already is cut: as its source has said."""
    complete: bool = False


class ResultExchange:
    """See the module."""

    def __init__(self, site: SiteId) -> None:
        self.site = site
        self.may_hold: Callable[[SiteId], bool] = lambda _: True
        """Whether a neighbour is asked: whoever says first that it holds a result is waited for."""
        self._held: dict[int, tuple[str, int, bool]] = {}
        self._pending: dict[SiteId, list[tuple[int, str]]] = {}
        self._fetch: _Fetch | None = None

    # -- the driver's wishes

    def hold(self, round_number: int, digest: str, chunk_count: int, *, fine: bool = False) -> list[ResultEffect]:
        """The result of a round lies here now, cut so: whoever waits for it, or for an older one, is told."""
        self._held[round_number] = (digest, chunk_count, fine)
        effects: list[ResultEffect] = []
        for site in sorted(self._pending):
            for wanted in [one for one in self._pending[site] if one[0] <= round_number]:
                self._pending[site].remove(wanted)
                effects += self._answer(site, *wanted)
        if self._fetch is not None and self._fetch.round == round_number:
            self._fetch = None
        return effects

    def drop(self, round_number: int) -> None:
        self._held.pop(round_number, None)

    def fetch(
        self,
        round_number: int,
        digest: str,
        *,
        chunk_count: int,
        fine_count: int | None = None,
        holders: Iterable[SiteId],
    ) -> list[ResultEffect]:
        """Get it; a second call for the same result adds holders, one for another result replaces the first.
        `fine_count`: chunks where it is cut finely; None: as many."""
        new = {holder for holder in holders if holder != self.site and self.may_hold(holder)}
        current = self._fetch
        if current is None or (current.round, current.digest) != (round_number, digest):
            counts = (chunk_count, chunk_count if fine_count is None else fine_count)
            current = self._fetch = _Fetch(round_number, digest, counts, set())
        asked = sorted(new - current.holders)
        current.holders |= new
        effects: list[ResultEffect] = [
            SendBulk(site=site, header=ResultWant(round=round_number, digest=digest)) for site in asked
        ]
        return effects if current.holders else [self._unavailable(current)]

    def void_after(self, round_number: int) -> bool:
        """Results of later rounds do not stand: they are not handed on, and who asks for the one that will is answered
        when it is here. True: one was being fetched, and is not any more."""
        self._held = {number: held for number, held in self._held.items() if number <= round_number}
        if self._fetch is None or self._fetch.round <= round_number:
            return False
        self._fetch = None
        return True

    def checked(self, complete: ResultComplete, digest: str) -> list[ResultEffect]:
        """All of it is here, and its bytes have this digest: only the one that was agreed makes it the result."""
        if digest == complete.digest:
            return [ResultVerified(round=complete.round, digest=digest)]
        fetch = self._fetch
        if fetch is not None and fetch.round == complete.round and fetch.source is not None and fetch.pulled_from:
            fetch.next, fetch.complete = 0, False
            return [self._pull(fetch, fetch.source)]
        return [ResultRefuted(round=complete.round, source=complete.source), *self.refuted(complete.round)]

    def refuted(self, round_number: int) -> list[ResultEffect]:
        """The digest is wrong: start again with another holder."""
        fetch = self._fetch
        if fetch is None or fetch.round != round_number:
            return []
        fetch.next, fetch.complete = 0, False
        if fetch.source is None:
            return []
        fetch.holders.discard(fetch.source)
        return self._next_source(fetch)

    # -- links, messages

    def link_lost(self, site: SiteId) -> list[ResultEffect]:
        self._pending.pop(site, None)
        fetch = self._fetch
        if fetch is None or site not in fetch.holders:
            return []
        if site in fetch.offers:
            fetch.offers.remove(site)
        return self._next_source(fetch) if fetch.source == site and not fetch.complete else []

    def link_up(self, site: SiteId) -> list[ResultEffect]:
        """Ask it (again)."""
        effects = self.link_lost(site)
        fetch = self._fetch
        if fetch is not None and not fetch.complete and self.may_hold(site):
            fetch.holders.add(site)
            effects.append(SendBulk(site=site, header=ResultWant(round=fetch.round, digest=fetch.digest)))
        return effects

    def place(self, site: SiteId, header: ResultData) -> FetchedRef | None:
        """Where the payload goes; None: nobody needs it. Raises RemoteProtocolError."""
        fetch = self._fetch
        if fetch is None or (fetch.round, fetch.digest) != (header.round, header.digest):
            return None
        if fetch.source != site or fetch.complete:
            return None
        if header.chunk != fetch.next:
            raise RemoteProtocolError(f"site {short(site)} broke a rule: chunks of a result must come in order")
        return FetchedRef(round=header.round, index=header.chunk, fine=fetch.fine)

    def received(self, site: SiteId, header: ResultHeader) -> list[ResultEffect]:
        """A whole frame is here. Raises RemoteProtocolError."""
        match header:
            case ResultWant(round=round_number, digest=digest):
                return self._wanted(site, round_number, digest)
            case ResultPull(round=round_number, digest=digest, next=start):
                return self._pulled(site, round_number, digest, start)
            case ResultHeld() | ResultGone():
                return self._told(site, header)
            case ResultData():
                return self._data(site, header)
            case _:
                assert_never(header)

    # -- holding

    def _wanted(self, site: SiteId, round_number: int, digest: str) -> list[ResultEffect]:
        if round_number in self._held or (self._held and round_number < min(self._held)):
            return self._answer(site, round_number, digest)
        if len(self._pending) < SITES_MAX:
            waiting = self._pending.setdefault(site, [])
            if (round_number, digest) not in waiting:
                waiting.append((round_number, digest))
            del waiting[:-WANTS_PENDING_MAX]
        return []

    def _answer(self, site: SiteId, round_number: int, digest: str) -> list[ResultEffect]:
        held = self._held.get(round_number)
        if held is not None and held[0] == digest:
            return [SendBulk(site=site, header=ResultHeld(round=round_number, digest=digest, fine=held[2]))]
        return [SendBulk(site=site, header=ResultGone(round=round_number, digest=digest))]

    def _pulled(self, site: SiteId, round_number: int, digest: str, start: int) -> list[ResultEffect]:
        held = self._held.get(round_number)
        if held is None or held[0] != digest:
            return self._answer(site, round_number, digest)
        return [
            SendBulk(
                site=site,
                header=ResultData(round=round_number, digest=digest, chunk=index),
                payload=HeldRef(round=round_number, index=index),
            )
            for index in range(start, held[1])
        ]

    # -- fetching

    def _told(self, site: SiteId, header: ResultHeld | ResultGone) -> list[ResultEffect]:
        fetch = self._fetch
        if fetch is None or (fetch.round, fetch.digest) != (header.round, header.digest) or fetch.complete:
            return []
        if site not in fetch.holders:
            return []
        if isinstance(header, ResultGone):
            fetch.holders.discard(site)
            if site in fetch.offers:
                fetch.offers.remove(site)
            return self._next_source(fetch) if fetch.source in (site, None) else []
        if site not in fetch.offers and site != fetch.source:
            fetch.offers.append(site)
            (fetch.fine_at.add if header.fine else fetch.fine_at.discard)(site)
        return self._next_source(fetch) if fetch.source is None else []

    def _next_source(self, fetch: _Fetch) -> list[ResultEffect]:
        fetch.source = None
        if fetch.offers:
            fetch.source = fetch.offers.pop(0)
            if (fine := fetch.source in fetch.fine_at) != fetch.fine:
                fetch.fine, fetch.next = fine, 0  # what is here is cut otherwise: one of the two is wrong
            return [self._pull(fetch, fetch.source)]
        return [] if fetch.holders else [self._unavailable(fetch)]

    def _pull(self, fetch: _Fetch, source: SiteId) -> SendBulk:
        """What is lacking."""
        fetch.pulled_from = fetch.next
        return SendBulk(site=source, header=ResultPull(round=fetch.round, digest=fetch.digest, next=fetch.next))

    def _data(self, site: SiteId, header: ResultData) -> list[ResultEffect]:
        if self.place(site, header) is None:
            return []
        fetch = self._fetch
        assert fetch is not None
        fetch.next += 1
        if fetch.next < fetch.chunk_counts[fetch.fine]:
            return []
        fetch.complete = True
        return [ResultComplete(round=fetch.round, digest=fetch.digest, source=site)]

    def _unavailable(self, fetch: _Fetch) -> ResultUnavailable:
        return ResultUnavailable(round=fetch.round, digest=fetch.digest)
