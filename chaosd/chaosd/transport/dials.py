"""The dials of this daemon that are under way, at most one for each site: whoever wants the same link waits for the
same one. Decides when a dial gives way to the neighbour's own, and when it is tried again.

Driven by the transport, which says which links stand; one dial's connections are those of an `Attempt`.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Protocol

from chaos_protocols.causes import Cause
from chaos_protocols.names import SITES_MAX, SiteId, short
from chaos_protocols.wire.handshake import Session
from chaosd.transport.dialer import Attempt, DialerContext, Yielded
from chaosd.transport.errors import DialError
from chaosd.transport.handshake import Speaker
from chaosd.transport.link import Link, SocketLinkPhase
from chaosd.transport.paths import Paths
from chaosd.transport.starts import weighs
from chaosd.transport.stream_scaling import Widening

YIELD_S = 0.5
"""How long a dial that gave way waits for the neighbour's own before it tries again: four round trips of 100 ms."""


class Links(Protocol):
    """The links of a daemon."""

    def link_to(self, site: SiteId) -> Link | None:
        """Coming up, or up."""

    def new_link(
        self, site: SiteId, incarnation: int, session: Session, streams: int, address: str, speaker: Speaker
    ) -> Link:
        """In place of the one that stands, if any."""


class Dials:
    """See the module."""

    def __init__(self, context: DialerContext, paths: Paths, links: Links) -> None:
        self._context, self._paths, self._links = context, paths, links
        self._attempts: dict[SiteId, Attempt] = {}
        self._arrivals: dict[SiteId, asyncio.Future[None]] = {}
        """Done when a link of that site comes up, whoever dialed it."""
        self._known: dict[SiteId, Session] = {}
        """The session of the last link to each site that was up; of the SITES_MAX that came up last."""
        self._attempts_made = 0
        self._widening = Widening(context)
        self._closing = False

    async def close(self) -> None:
        """Give all of them up."""
        self._closing = True
        attempts = [attempt.task for attempt in self._attempts.values() if attempt.task is not None]
        for task in attempts:
            task.cancel()
        await self._widening.stop()
        await asyncio.gather(*attempts, return_exceptions=True)

    async def dial(self, site: SiteId, address: str, *, timeout_s: float) -> None:
        """Bring up the link, or the streams that it lacks. Raises DialError."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while not self._is_whole(link := self._links.link_to(site)):
            shared = self._attempts.get(site)
            attempt = shared or self._new_attempt(site, address, link, timeout_s)
            try:
                if await self._await_link(attempt, site, deadline_s):
                    return
            finally:
                if shared is None and attempt.task is not None and not attempt.task.done():
                    attempt.task.cancel()
                    await asyncio.wait([attempt.task])
            if self._closing or loop.time() >= deadline_s:
                late = "no answer in time"
                raise DialError(late, Cause.UNREACHABLE.told(site=short(site), address=address, reason=late))

    # -- what the transport tells of the neighbours' own dials

    def is_committed(self, site: SiteId) -> bool:
        """Whether a dial of this site's has said its hello and goes on."""
        attempt = self._attempts.get(site)
        return attempt is not None and attempt.committed

    def give_way(self, site: SiteId) -> None:
        """The neighbour's own dial was accepted."""
        if (attempt := self._attempts.get(site)) is not None:
            attempt.supersede()

    def link_up(self, link: Link) -> None:
        """By whichever dial."""
        self._known.pop(link.site, None)
        self._known[link.site] = link.session
        if len(self._known) > SITES_MAX:
            del self._known[next(iter(self._known))]
        attempt = self._attempts.get(link.site)
        if attempt is not None and attempt.session != link.session:
            attempt.supersede()

    def arrived(self, site: SiteId) -> None:
        """Its link is up, and that has been told: who waited for it goes on."""
        if (arrival := self._arrivals.pop(site, None)) is not None and not arrival.done():
            arrival.set_result(None)

    # -- one of them

    def _new_attempt(self, site: SiteId, address: str, link: Link | None, limit_s: float) -> Attempt:
        repaired = link if link is not None and self._can_repair(link) else None
        self._attempts_made += 0 if repaired else 1
        own = Session(dialer=self._context.identity.site, attempt=self._attempts_made)
        attempt = Attempt(
            self._context,
            site,
            address,
            session=repaired.session if repaired is not None else own,
            known=self._known.get(site),
            streams=repaired.streams_wanted if repaired is not None else self._context.settings.streams_wanted,
            limit_s=limit_s,
        )
        self._attempts[site] = attempt
        work = self._repair(attempt, repaired) if repaired is not None else self._bring_up(attempt)
        attempt.task = asyncio.get_running_loop().create_task(work, name=f"dial {short(site)}")
        attempt.task.add_done_callback(functools.partial(self._end_attempt, attempt))
        return attempt

    async def _await_link(self, attempt: Attempt, site: SiteId, deadline_s: float) -> bool:
        """True when the link came up, by the attempt or by the neighbour's own dial. Raises the attempt's DialError.

        An attempt that yields leaves the neighbour YIELD_S to bring its own to an end, since that may fail as well.
        """
        loop, task = asyncio.get_running_loop(), attempt.task
        arrival = self._arrivals.setdefault(site, loop.create_future())
        assert task is not None
        waiting: set[asyncio.Future[None]] = {arrival, task}
        while waiting and not self._closing:
            remaining_s = max(0.0, deadline_s - loop.time())
            done, waiting = await asyncio.wait(waiting, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
            if arrival in done:
                return True
            if not done:
                return False
            try:
                task.result()
                return True
            except (Yielded, asyncio.CancelledError):
                deadline_s = min(deadline_s, loop.time() + YIELD_S)
        return False

    async def _bring_up(self, attempt: Attempt) -> None:
        try:
            await self._paths.before_dial(attempt.site)
            control, verdict = await attempt.control()
            bulk = await attempt.bulk(list(range(self._context.settings.streams_at_once)))
            connections = [control, *bulk]
            site, standing = attempt.site, self._links.link_to(attempt.site)
            weighed = standing is not None and weighs(standing.speaker.chain, attempt.listener.chain)
            if standing is not None and weighed and standing.incarnation > verdict.incarnation:
                raise DialError(f"site {short(site)} has restarted meanwhile")
            if not all(connection.is_open for connection in connections):
                raise DialError(f"site {short(site)} closed the link while it came up")
            session, streams = attempt.session, attempt.streams
            link = self._links.new_link(site, verdict.incarnation, session, streams, attempt.address, attempt.listener)
            attempt.keep()
            for connection in connections:
                link.add(connection)
            link.complete()
            self._widening.consider(link)
        except (asyncio.CancelledError, DialError):
            if attempt.superseded:
                raise Yielded from None
            raise

    async def _repair(self, attempt: Attempt, link: Link) -> None:
        try:
            await self._paths.before_dial(attempt.site)
            connections = await attempt.bulk(link.missing)
            if link.state is not SocketLinkPhase.UP:
                raise DialError(f"the link to site {short(attempt.site)} was lost meanwhile")
            attempt.keep()
            for connection in connections:
                link.add(connection)
        except (asyncio.CancelledError, DialError):
            if attempt.superseded:
                raise Yielded from None
            raise

    def _is_whole(self, link: Link | None) -> bool:
        """Up, and without a stream that this end could restore."""
        return link is not None and link.state is SocketLinkPhase.UP and not self._can_repair(link)

    def _can_repair(self, link: Link) -> bool:
        is_own = link.session.dialer == self._context.identity.site
        return link.state is SocketLinkPhase.UP and is_own and bool(link.missing)

    def _end_attempt(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """However it ended, and even if it was cancelled before its first step."""
        attempt.close(task)
        if self._attempts.get(attempt.site) is attempt:
            del self._attempts[attempt.site]
