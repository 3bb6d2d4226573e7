"""Who may see the page: nobody but a browser that was given a ticket by `chaosd page`, on this machine.

Loopback is no door: every process of the machine reaches it, and so does every web site that the operator's browser
has open. So, before anything is answered: the `Host` must be a name of loopback (a foreign name that was made to point
here, DNS rebinding, shows itself so); an `Origin` must be the page's own; a request that the browser calls cross-site
gets nothing. To see anything a session is needed, and it begins with a ticket, good once and for two minutes, which
only who may open the daemon's unix socket can ask for. To change anything the session's second secret is needed too,
which a foreign page cannot read and does not send by itself (cross-site request forgery).

Decides only; `server.py` asks. Tickets and sessions are kept as hashes: a look-up tells nothing by its time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""What `Host` may name. The port is free: one that was forwarded by ssh is another than the daemon's."""

TICKET_LIFE_S = 120.0
"""From the command that prints the address to the browser that opens it."""
TICKETS_MAX = 16
SESSION_LIFE_S = 12 * 3600.0
"""Without a request; a page that is open asks again whenever its stream breaks."""
SESSIONS_MAX = 32
SECRET_BYTES = 32


def why_foreign(headers: Mapping[str, str], *, navigation: bool = False) -> str:
    """Empty for a request that may be answered, else what is foreign about it. `navigation`: the address itself is
    opened, for which a link on another site is allowed: it shows a page, and gives that site nothing."""
    host = headers.get("Host", "")
    name, _, port = host.rpartition(":")
    if not port.isdecimal() or host.endswith("]"):
        name = host
    if name.lower() not in LOOPBACK_NAMES:
        return "the host is not this machine's loopback"
    if "Origin" in headers and headers["Origin"] != f"http://{host}":
        return "the origin is another page"
    if headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return ""
    opened = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return "" if navigation and opened else "another site asks"


@dataclass(slots=True)
class PageSession:
    """A browser that is let in. `form_secret`: what every change must carry beside the cookie."""

    form_secret: str
    until_s: float


class Doorkeeper:
    """Tickets and sessions, each bounded in number and time; the oldest goes first."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, float] = {}
        self._sessions: dict[bytes, PageSession] = {}

    def ticket(self, now_s: float) -> str:
        """A new one-time secret."""
        while len(self._tickets) >= TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]
        text = secrets.token_urlsafe(SECRET_BYTES)
        self._tickets[_hash(text)] = now_s + TICKET_LIFE_S
        return text

    def redeem(self, ticket: str, now_s: float) -> str | None:
        """The cookie of a new session for a ticket that is good; the ticket is spent."""
        until_s = self._tickets.pop(_hash(ticket), None)
        if until_s is None or until_s < now_s:
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        session = PageSession(form_secret=secrets.token_urlsafe(SECRET_BYTES), until_s=now_s + SESSION_LIFE_S)
        self._sessions[_hash(cookie)] = session
        return cookie

    def session(self, cookie: str | None, now_s: float) -> PageSession | None:
        """The session of a cookie, prolonged; None for none, or one that is over."""
        key = _hash(cookie or "")
        session = self._sessions.pop(key, None)
        if session is None or session.until_s < now_s:
            return None
        session.until_s = now_s + SESSION_LIFE_S
        self._sessions[key] = session  # the one that was used last stands last
        return session


class PageDoor:
    """What of the page outlives one life of the daemon: where it is open, and who is in. `address`: the setting `page`;
    empty: not open until `chaosd page` asks."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.demanded = bool(address)
        """By the configuration: a daemon that cannot open it says so and does not start."""
        self.keeper = Doorkeeper()


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
