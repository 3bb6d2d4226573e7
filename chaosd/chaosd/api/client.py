"""A small blocking client of the daemon's local API (api/server.py), for the command line and scripts.

One HTTP request a call over the unix socket; nothing is kept open but a follower's stream. It says apart: no daemon
answers (NoDaemonError), and the daemon answered with a refusal or in the language of another version
(RequestRefusedError).
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from chaosd.api.status import (
    BlockedSite,
    EventRecord,
    KeyStatus,
    ListedPeer,
    LostMajority,
    Outcome,
    PageAddress,
    PendingSite,
    RunBounds,
    SeenHere,
    Status,
    TrustedSite,
)
from chaosd.os_errors import brief, explain

ANSWER_TIMEOUT_S = 5.0
"""A daemon that cannot say its status for so long is stuck: its loop serves this within milliseconds."""

SEEN_TIMEOUT_S = 10.0
"""The neighbour has 6 s (peer_view.ANSWER_TIMEOUT_S)."""

CHANGE_TIMEOUT_S = 120.0
"""A change of a link takes a negotiation; a leave waits for the end of the round, which may be a long one."""

FOLLOW_TIMEOUT_S = 30.0
"""The daemon sends a sign of life every 5 s (api.SIGN_OF_LIFE_S)."""

ANSWER_BYTES_MAX = 64 << 20
LINE_BYTES_MAX = 1 << 20

NOBODY_THERE = (FileNotFoundError, ConnectionError)
"""What the system says where no daemon runs, or one ended meanwhile."""

Answer = TypeVar("Answer")


class NoDaemonError(ConnectionError):
    """Nobody answers at `path`."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"no daemon answers at {path} ({why})")
        self.path = path


class SocketUnusableError(NoDaemonError):
    """Whether a daemon is there cannot be seen: the text says what keeps this process from asking."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.args = (f"the daemon's socket cannot be used: {why}",)


class SilentDaemonError(NoDaemonError):
    """Somebody listens at `path`, and does not get to answer: a further daemon could not be started there."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(path, why)
        self.args = (f"the daemon at {path} does not answer ({why})",)


class RequestRefusedError(Exception):
    """The daemon answered, and said no, in these words. `status`: that of HTTP, 0 for an answer not understood."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


NO_SUCH_REQUEST = re.compile(r"([A-Z]+ /v1/\S+): (Not Found|Method Not Allowed)")
OLDER = (
    r"it does not know \1, since it is of another release than this command: after an upgrade start it again, "
    "`chaosd leave` and then `chaosd start`"
)


class LocalClient:
    """Asks the daemon at the unix socket `path`. Every method may raise NoDaemonError or RequestRefusedError."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def status(self) -> Status:
        return self.ask("GET", "/v1/status", Status)

    def events(self, *, after_id: int = 0, limit: int = 100) -> list[EventRecord]:
        """History after `after_id`, oldest first."""
        return self.ask("GET", "/v1/events?" + urlencode({"after": after_id, "limit": limit}), list[EventRecord])

    def last_events(self, count: int) -> list[EventRecord]:
        """The newest `count` records, oldest first."""
        return self.ask("GET", "/v1/events?" + urlencode({"last": count}), list[EventRecord])

    def metrics(self) -> str:
        """Every counter, in Prometheus' text format."""

        def read(status: int, data: bytes) -> str:
            return data.decode() if status == 200 else self._decode(status, data, str)

        return self._answer("GET", "/v1/metrics", None, ANSWER_TIMEOUT_S, read)

    def follow_events(self, *, after_id: int | None = None) -> Iterator[EventRecord]:
        """Records after `after_id` (None: from now on) as they come, until the daemon stops."""
        query = "" if after_id is None else "?" + urlencode({"after": after_id})
        connection, response = self._send("GET", f"/v1/events/follow{query}", None, FOLLOW_TIMEOUT_S)
        try:
            if response.status != 200:
                self._decode(response.status, response.read(ANSWER_BYTES_MAX), Outcome)
            while line := response.readline(LINE_BYTES_MAX):
                if line.strip():
                    yield self._decode(200, line, EventRecord)
        except (OSError, http.client.HTTPException) as error:
            raise NoDaemonError(self.path, f"the stream of events broke: {error or type(error).__name__}") from error
        finally:
            response.close()
            connection.close()

    def change_link(self, site: str, *, add: bool) -> Outcome:
        """Connect-link or disconnect-link between the daemon's site and `site` (id, unique prefix of it, or name)."""
        return self.ask("POST", "/v1/link", Outcome, {"site": site, "add": add}, timeout_s=CHANGE_TIMEOUT_S)

    def leave(self, reason: str = "asked for by the operator") -> Outcome:
        """The daemon's site leaves the run gracefully, then the daemon stops."""
        return self.ask("POST", "/v1/leave", Outcome, {"reason": reason}, timeout_s=CHANGE_TIMEOUT_S)

    def reload(self) -> Outcome:
        """The daemon reads its configuration again, and takes over what can be changed while it runs."""
        return self.ask("POST", "/v1/reload", Outcome)

    def page(self, address: str = "") -> PageAddress:
        """Where the page is, with a ticket; opened at `address` where it is not open yet."""
        return self.ask("POST", "/v1/page", PageAddress, {"address": address})

    def recover(self, site: str, round_number: int) -> Outcome:
        """A run that stands goes on from that site's state of that round, or (no site) begins anew."""
        body: dict[str, Any] = {"site": site, "round": round_number} if site else {"anew": True}
        return self.ask("POST", "/v1/recover", Outcome, body, timeout_s=CHANGE_TIMEOUT_S)

    def recovery(self) -> LostMajority:
        """What an operator can decide where a majority of the voters is gone."""
        return self.ask("GET", "/v1/recovery", LostMajority)

    def recover_without(self, sites: Sequence[str]) -> Outcome:
        """A new run of what the daemon's site has; these sites are given up."""
        return self.ask("POST", "/v1/recover-without", Outcome, {"without": list(sites)}, timeout_s=CHANGE_TIMEOUT_S)

    def follow(self, site: str) -> Outcome:
        """The daemon's site goes over to the run that `site` has recovered."""
        return self.ask("POST", "/v1/follow", Outcome, {"site": site}, timeout_s=CHANGE_TIMEOUT_S)

    def pending(self) -> list[PendingSite]:
        """Sites that knocked and are not trusted."""
        return self.ask("GET", "/v1/pending", list[PendingSite])

    def trusted(self) -> list[TrustedSite]:
        """Sites that may connect."""
        return self.ask("GET", "/v1/trust", list[TrustedSite])

    def trust(self, site: str, *, add: bool = True, pending: bool = False) -> Outcome:
        """Let `site` (id, or the beginning of one that knocked; `pending`: of these alone) connect from now on, or
        (not `add`) no more."""
        return self.ask("POST", "/v1/trust", Outcome, {"site": site, "add": add, "pending": pending})

    def blocked(self) -> list[BlockedSite]:
        """Sites with which there is no link, on the operator's word."""
        return self.ask("GET", "/v1/blocked", list[BlockedSite])

    def block(self, site: str, *, add: bool = True, ban: bool = False, reason: str = "") -> Outcome:
        """Have no link with `site` (id, the beginning of it, or a name) from now on, or (not `add`) let it again.
        `ban`: and want it out of the run."""
        return self.ask("POST", "/v1/block", Outcome, {"site": site, "add": add, "ban": ban, "reason": reason})

    def bounds(self) -> RunBounds:
        """What the run allows a site to give."""
        return self.ask("GET", "/v1/bounds", RunBounds)

    def want_bounds(self, bounds: Mapping[str, float], *, withdraw: bool = False) -> Outcome:
        """Want others: `norm_max`, `weight_max`, `clip_radius`, 0 for none; or take that back."""
        return self.ask("POST", "/v1/bounds", Outcome, {**bounds, "withdraw": withdraw})

    def key(self) -> KeyStatus:
        """The keys of the daemon's site."""
        return self.ask("GET", "/v1/key", KeyStatus)

    def change_key(self, what: str, site: str = "", key: str = "") -> Outcome:
        """`rotate`, `cancel`, or `approve` that the next key of `site` is `key`, by its id or its words."""
        return self.ask("POST", "/v1/key", Outcome, {"what": what, "site": site, "key": key})

    def peers(self) -> list[ListedPeer]:
        """Neighbours that the daemon dials."""
        return self.ask("GET", "/v1/peers", list[ListedPeer])

    def add_peer(self, site: str, address: str, name: str = "") -> Outcome:
        """Dial that neighbour from now on."""
        body = {"site": site, "address": address, "name": name, "add": True}
        return self.ask("POST", "/v1/peer", Outcome, body)

    def remove_peer(self, site: str) -> Outcome:
        """Dial it no more."""
        return self.ask("POST", "/v1/peer", Outcome, {"site": site, "add": False})

    def seen(self, site: str) -> SeenHere:
        """How a neighbour (id, unique beginning of it, or name) sees the daemon's site."""
        return self.ask("POST", "/v1/seen", SeenHere, {"site": site}, timeout_s=SEEN_TIMEOUT_S)

    def ask(
        self,
        method: str,
        target: str,
        kind: type[Answer],
        body: dict[str, Any] | None = None,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Answer:
        """One request to any route; its answer as a `kind`."""
        return self._answer(method, target, body, timeout_s, lambda status, data: self._decode(status, data, kind))

    def _answer(
        self,
        method: str,
        target: str,
        body: dict[str, Any] | None,
        timeout_s: float,
        read: Callable[[int, bytes], Answer],
    ) -> Answer:
        connection, response = self._send(method, target, body, timeout_s)
        try:
            data = response.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise NoDaemonError(self.path, f"it stopped while it answered: {error or type(error).__name__}") from error
        finally:
            response.close()
            connection.close()
        if len(data) > ANSWER_BYTES_MAX:
            raise RequestRefusedError(
                0, f"the answer at {self.path} is longer than {ANSWER_BYTES_MAX} bytes: no chaosd"
            )
        return read(response.status, data)

    def _send(
        self, method: str, target: str, body: dict[str, Any] | None, timeout_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = _UnixConnection(self.path, timeout_s)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, target, body=payload, headers={"Connection": "close"})
            return connection, connection.getresponse()
        except TimeoutError as error:
            connection.close()
            raise SilentDaemonError(self.path, f"nothing within {timeout_s:g} s: stopped or overloaded") from error
        except BlockingIOError as error:  # so many were given up before it that no further one may wait
            connection.close()
            raise SilentDaemonError(self.path, "too many wait for it already: stopped or overloaded") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if isinstance(error, OSError) and not isinstance(error, NOBODY_THERE):
                raise SocketUnusableError(self.path, explain(error, self.path)) from error
            raise NoDaemonError(self.path, brief(error)) from error

    def _decode(self, status: int, data: bytes, kind: type[Answer]) -> Answer:
        try:
            if status == 200:
                return msgspec.json.decode(data, type=kind)
            told = msgspec.json.decode(data, type=dict[str, str])["error"]
            raise RequestRefusedError(status, NO_SUCH_REQUEST.sub(OLDER, told))
        except (msgspec.DecodeError, KeyError) as error:
            text = f"the answer of the daemon at {self.path} is not understood ({error}): is it of another version?"
            raise RequestRefusedError(0, text) from error


class _UnixConnection(http.client.HTTPConnection):
    """http.client over a unix socket: only the way to connect differs."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
