"""The addresses of a host's name, as the system's resolver says them. Decides nothing.

A resolver that does not answer keeps whoever asks for as long as it likes, half a minute and more, and cannot be called
off. The loop's own threads are few, all lookups share them, and the process does not end before they have: names that
nobody can resolve would keep all others waiting, and a daemon that has left from ending. So each name is asked for on a
thread of its own, once at a time however many dials want it, and the end of the process waits for none.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading


class Lookups:
    """Those under way, of one loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Each once, in the resolver's order. Who gives up leaves the question to those who ask next. Raises OSError,
        ValueError (text that cannot be the name of a host)."""
        lookup = self._under_way.get(host)
        if lookup is None:
            lookup = self._under_way[host] = self._begun(host)
        return await asyncio.shield(lookup)

    def _begun(self, host: str) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def told(found: list[str], failure: Exception | None) -> None:
            del self._under_way[host]
            if failure is None:
                answer.set_result(found)
            else:
                answer.set_exception(failure)

        def ask() -> None:
            found, failure = list[str](), None
            try:
                infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(info[4][0]) for info in infos))
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody wants it any more
                loop.call_soon_threadsafe(told, found, failure)

        try:
            threading.Thread(target=ask, name=f"look up {host}", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from None
        return answer
