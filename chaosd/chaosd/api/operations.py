"""What a running daemon can be asked to do or tell: the `Control` behind the local API.

Called by `api/server.py` on the daemon's loop; every wish becomes an event of the driver, and its answer comes as an
effect.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable

from chaos_protocols.events import Event, LeaveRequested, LinkChangeRequested, RecoverRequested
from chaos_protocols.named_sites import NotOneSite, site_named
from chaos_protocols.names import short
from chaosd.api.daemon_status import build_status, event_record
from chaosd.api.status import EventRecord, Outcome, Status
from chaosd.config.model import SiteConfig
from chaosd.driver import Driver
from chaosd.storage.history import History, HistoryRecord

FOLLOWER_QUEUE_MAX = 1000
LINK_TIMEOUT_S = 60.0
"""`chaosd link` answers after so long at the latest, however long a negotiation may take: whoever asks waits for twice
as long at most, and would take the daemon for one that is stopped."""

RECOVER_TIMEOUT_S = 60.0
"""`chaosd recover` answers after so long at the latest; whether it was carried out is in the events."""

LEAVE_TIMEOUT_S = 60.0
"""`chaosd leave` answers after so long at the latest; the daemon goes on trying."""


class Operations:
    """See the module."""

    def __init__(self, driver: Driver, config: SiteConfig, history: History) -> None:
        self._driver, self._config, self._history = driver, config, history
        self._requests = itertools.count(1)

    def status(self) -> Status:
        return build_status(self._driver, self._config, self._driver.transport.address)

    def metrics(self) -> bytes:
        return self._driver.metrics.text()

    def events(self, after_id: int, limit: int) -> list[EventRecord]:
        return [event_record(record) for record in self._history.read(after_id=after_id, limit=limit)]

    async def follow_events(self) -> AsyncIterator[EventRecord]:
        queue: asyncio.Queue[HistoryRecord] = asyncio.Queue(FOLLOWER_QUEUE_MAX)
        self._driver.recorder.followers.add(queue)
        try:
            while True:
                yield event_record(await queue.get())
        finally:
            self._driver.recorder.followers.discard(queue)

    async def change_link(self, site: str, *, add: bool) -> Outcome:
        machine, given = self._driver.machine, self._driver.names.given()
        others = [(one.site, one.name) for one in machine.roster.sites if one.site != machine.site]
        own = [(other, given[other]) for other, _ in others if other in given]
        try:
            other = site_named(site, own + others, "the other sites of the run")
        except NotOneSite as error:
            return _refused(error)
        return await self._ask(
            lambda request: LinkChangeRequested(request=request, other=other, add=add),
            timeout_s=min(LINK_TIMEOUT_S, 3 * self._config.settings.negotiation_timeout_s),
        )

    async def leave(self, reason: str) -> Outcome:
        return await self._ask(
            lambda request: LeaveRequested(request=request, reason=reason), timeout_s=LEAVE_TIMEOUT_S
        )

    async def recover(self, site: str, round_number: int) -> Outcome:
        try:
            origin = self._called_here(site)
        except NotOneSite as error:
            return _refused(error)
        return await self._ask(
            lambda request: RecoverRequested(request=request, origin=origin, round=round_number),
            timeout_s=RECOVER_TIMEOUT_S,
        )

    def _called_here(self, typed: str) -> str:
        """The id of the site that this site's operator calls so, which whoever schedules cannot know; any other word as
        it is, for that one knows more sites. Raises NotOneSite where another site calls itself so."""
        given = self._driver.names.given()
        if typed not in given.values():
            return typed
        sites = [(one.site, one.name) for one in self._driver.machine.roster.sites]
        return site_named(typed, [*given.items(), *sites], "the sites that are known here")

    async def _ask(self, make: Callable[[str], Event], *, timeout_s: float) -> Outcome:
        loop = asyncio.get_running_loop()
        request = f"user-{short(self._driver.machine.site)}-{self._driver.machine.incarnation}-{next(self._requests)}"
        answer: asyncio.Future[tuple[bool, str]] = loop.create_future()
        self._driver.answers[request] = answer
        begun_s = time.monotonic()
        self._driver.feed(make(request))
        try:
            done, reason = await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            done, reason = False, f"no answer within {timeout_s:g} s; the request goes on, see chaosd events"
        finally:
            self._driver.answers.pop(request, None)
        named = self._driver.names.in_text(reason)
        return Outcome(done=done, reason=named, duration_s=time.monotonic() - begun_s)


def _refused(error: NotOneSite) -> Outcome:
    return Outcome(done=False, reason=str(error), duration_s=0.0)
