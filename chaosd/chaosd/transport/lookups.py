"""The addresses of a host's name, as the system's resolver says them. Decides nothing.

A resolver that does not answer keeps whoever asks for half a minute and more (`patient_threads`). So each name is asked
for once at a time, however many dials want it: they give up sooner, and the next one comes.
"""

from __future__ import annotations

import asyncio
import functools
import socket

from chaosd import patient_threads


class Lookups:
    """Those under way, of one loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Each once, in the resolver's order. Who gives up leaves the question to those who ask next. Raises OSError,
        ValueError (text that cannot be the name of a host)."""
        lookup = self._under_way.get(host)
        if lookup is None:
            lookup = patient_threads.begin(functools.partial(_resolved, host), f"look up {host}")
            self._under_way[host] = lookup
            lookup.add_done_callback(lambda _: self._under_way.pop(host, None))
        return await asyncio.shield(lookup)


def _resolved(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))
