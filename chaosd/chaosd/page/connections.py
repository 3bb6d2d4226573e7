"""The connections to a page. Decides which one gives way when there are too many.

Every process of the machine, of whichever user, can connect to loopback and say nothing, as often as it likes; each
connection takes one of the files that the daemon may open, which it needs for its links and its checkpoints. So they
are bounded, like strangers at the daemon's port: the oldest that has shown no session goes first, and a browser that
loses one opens another.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

CONNECTIONS_MAX = 64
"""A browser has up to six, and at most sixteen pages are open (`feed.VIEWERS_MAX`)."""
ACCEPTED_AT_ONCE = 16
"""By the loop in one turn: by so many there may be more for a moment."""


class PageConnections:
    """Serves what `runner` serves, on TCP, between `open` and `close`."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._listening: asyncio.Server | None = None
        self._let_in: set[web.RequestHandler] = set()
        self._given_up: set[web.RequestHandler] = set()
        """Of both those that stand, and such as have ended since the last one came."""

    async def open(self, host: str, port: int) -> int:
        """The actual port. Raises OSError."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(self._connected, host, port, backlog=ACCEPTED_AT_ONCE)
        except OSError:
            await self._runner.cleanup()
            raise
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Answers what is under way."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    def let_in(self, request: web.Request) -> None:
        """Who is at the other end has shown a session."""
        self._let_in.add(request.protocol)

    def _connected(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "it listens only while it is set up"
        self._let_in.intersection_update(server.connections)
        self._given_up.intersection_update(server.connections)
        standing = [one for one in server.connections if one not in self._given_up]
        if len(standing) >= CONNECTIONS_MAX:
            oldest = next((one for one in standing if one not in self._let_in), standing[0])
            self._given_up.add(oldest)
            if oldest.transport is not None:
                oldest.transport.abort()
        return server()
