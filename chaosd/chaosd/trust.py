"""Which sites may connect to this one: those of the configuration, those of the roster, and those that the operator
has let in while the daemon ran.

Who knocked in vain is remembered, so that `chaosd pending` can show it and `chaosd trust` can let it in: an id that has
knocked is proven, the handshake has seen its key, so the operator compares it with what the other institution says and
types nothing. What was granted is kept in a file of the data directory, one id a line, beside what the configuration
says.

Decides who is trusted; `Daemon.admits` asks.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web

from chaos_protocols.names import SITE_ID_CHARACTERS, SITES_MAX, SiteId
from chaosd.api.answers import json_answer, read_body
from chaosd.api.status import Outcome, PendingSite

TRUSTED_NAME = "trusted"
TRUSTED_BYTES_MAX = 1 << 20
PENDING_MAX = 64
"""Ids that knocked; the one that has been silent longest goes first."""
REFUSALS_TOLD_MAX = 1000
"""Ids cost nothing: whoever makes thousands of them fills nobody's log."""
SITE_ID = rf"^[0-9a-f]{{{SITE_ID_CHARACTERS}}}$"


class TrustBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: an id, or the beginning of one that has knocked."""

    site: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{4,64}$")]


class TrustList:
    """See the module. `configured`: peers and `trust` of the configuration."""

    def __init__(self, data_dir: Path, configured: frozenset[SiteId], clock: Callable[[], float] = time.time) -> None:
        self._path, self._configured, self._clock = data_dir / TRUSTED_NAME, configured, clock
        self._granted = _read(self._path)
        self._pending: dict[SiteId, PendingSite] = {}
        self._told = 0

    def __contains__(self, site: object) -> bool:
        return site in self._configured or site in self._granted

    def knocked(self, site: SiteId) -> bool:
        """A proven site was refused since nobody here trusts it; True when that is news, and the log not full of it."""
        before = self._pending.pop(site, None)
        if before is None and len(self._pending) >= PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        first_s = self._clock() if before is None else before.first_unix_s
        times = 1 if before is None else before.times + 1
        now_s = self._clock()
        self._pending[site] = PendingSite(site=site, first_unix_s=first_s, last_unix_s=now_s, times=times)
        self._told += before is None
        return before is None and self._told <= REFUSALS_TOLD_MAX

    def grant(self, text: str) -> Outcome:
        """Trust a site from now on, and after a restart. Raises OSError where that cannot be written down."""
        matches = [site for site in self._pending if site.startswith(text)]
        if re.match(SITE_ID, text):
            matches = [SiteId(text)]
        if len(matches) != 1:
            known = ", ".join(self._pending) or "none"
            what = "more than one site" if matches else "no site"
            return Outcome(done=False, reason=f"{what} that knocked begins so; there are: {known}", duration_s=0.0)
        (site,) = matches
        if site in self:
            return Outcome(done=True, reason=f"{site} was trusted already", duration_s=0.0)
        if len(self._granted) >= SITES_MAX:
            return Outcome(done=False, reason=f"{SITES_MAX} sites are trusted already", duration_s=0.0)
        _write(self._path, {*self._granted, site})
        self._granted.add(site)
        self._pending.pop(site, None)
        return Outcome(done=True, reason=f"{site} may connect from now on; it tries again by itself", duration_s=0.0)

    def pending(self) -> list[PendingSite]:
        """Who knocked in vain, the latest last."""
        return [one for site, one in self._pending.items() if site not in self]

    # -- the local API

    def local_routes(self) -> list[web.RouteDef]:
        """For the unix socket."""
        return [web.get("/v1/pending", self._tell_pending), web.post("/v1/trust", self._trust)]

    async def _tell_pending(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.pending())

    async def _trust(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, TrustBody)
        try:
            return json_answer(self.grant(asked.site))
        except OSError as error:
            reason = f"cannot write {self._path}: {error.strerror}; nothing has changed"
            return json_answer(Outcome(done=False, reason=reason, duration_s=0.0))


def _read(path: Path) -> set[SiteId]:
    try:
        with path.open("rb") as file:
            lines = file.read(TRUSTED_BYTES_MAX).decode("ascii", "replace").split()
    except FileNotFoundError:
        return set()
    return {SiteId(line) for line in lines if re.match(SITE_ID, line)}


def _write(path: Path, sites: set[SiteId]) -> None:
    """Whole or not at all: half a list would lock somebody out."""
    temporary = path.with_name(path.name + ".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write("".join(f"{site}\n" for site in sorted(sites)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
