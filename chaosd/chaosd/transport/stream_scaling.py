"""Further bulk streams for a link whose round trip asks for them. Decides when; driven by the transport.

A link is up with its first streams. Where a round trip is long, one window is too small for what the link carries
(rate times round trip), so the dialing end brings up further streams once the link stands; on short paths they would
cost handshakes and memory for nothing. A link is as good as before when that fails.
"""

from __future__ import annotations

import asyncio
import logging

from chaos_protocols.names import short
from chaosd.transport.dialer import Attempt, DialerContext, Yielded, let_go
from chaosd.transport.errors import DialError
from chaosd.transport.link import Link, SocketLinkPhase

_log = logging.getLogger("chaosd.transport")


class Widening:
    """See the module."""

    def __init__(self, dialer: DialerContext) -> None:
        self._dialer = dialer
        self._tasks: set[asyncio.Task[None]] = set()

    def consider(self, link: Link) -> None:
        """The link has just come up, dialed by this end."""
        if link.extra and link.streams_useful() > len(link.streams) - 1:
            name = f"further streams to {short(link.site)}"
            task = asyncio.get_running_loop().create_task(self._widen(link), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _widen(self, link: Link) -> None:
        attempt = Attempt(
            self._dialer,
            link.site,
            link.address,
            session=link.session,
            known=None,
            streams=link.streams_wanted,
            limit_s=self._dialer.settings.handshake_timeout_s,
        )
        try:
            connections = await attempt.bulk(link.extra)
            if link.state is SocketLinkPhase.UP:
                attempt.keep()
                for connection in connections:
                    link.add(connection)
        except (DialError, Yielded) as error:
            let_go(error)
            _log.info("no further streams: %s", error)
        finally:
            attempt.abandon("the link is gone")
