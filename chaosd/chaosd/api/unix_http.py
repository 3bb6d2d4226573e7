"""HTTP on a unix socket of this user: how the daemon and a worker group's controller serve what operators ask.

The door is the file system: mode 0600 from the first moment on, nothing is bound to TCP. Driven on the owner's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from chaosd.api.answers import BODY_BYTES_MAX, CLOSE_TIMEOUT_S, errors_as_json
from chaosd.unix_sockets import UnixListener


class UnixHttp:
    """Serves `routes` at `path` between `start` and `close`. `setting`: what names the path, for people."""

    def __init__(self, path: Path, setting: str, routes: Sequence[web.RouteDef]) -> None:
        self._path, self._setting = path, setting
        self._listener: UnixListener | None = None
        self._server: asyncio.AbstractServer | None = None
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[errors_as_json])
        application.add_routes(routes)
        quiet = logging.getLogger("chaosd.api.server.http")
        quiet.setLevel(logging.CRITICAL + 1)  # a request that is no HTTP is answered, not told with a traceback
        self._runner = web.AppRunner(
            application, access_log=None, logger=quiet, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S
        )

    async def start(self) -> None:
        """Raises UnixSocketError when somebody answers at the path or something else lies there."""
        self._listener = listener = UnixListener(self._path, self._setting)
        await self._runner.setup()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._runner.server, sock=listener.socket)

    def stop_listening(self) -> None:
        """Nobody new is let in. Safe to call twice and without `start`."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Answers what is under way and removes the socket. Safe to call twice and without `start`."""
        self.stop_listening()
        await self._runner.cleanup()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
