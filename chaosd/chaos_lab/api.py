"""What the lab may ask of its daemons beside what every daemon answers: to shape a link, and to break one.

| route | answers |
| --- | --- |
| POST /v1/lab/shape | `Outcome` |
| POST /v1/lab/break | `Outcome` |

Served by `daemon.py` on the daemon's own socket, asked by `LabClient`. No other daemon has these routes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web

from chaos_lab.links.shape import LinkShape
from chaos_lab.links.transport import LabTransport
from chaos_protocols.names import SiteId
from chaosd.api.answers import Text, json_answer, read_body
from chaosd.api.client import LocalClient
from chaosd.api.status import Outcome

Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Rate = Annotated[float, msgspec.Meta(gt=0.0, le=1e12)]
Latency = Annotated[float, msgspec.Meta(ge=0.0, le=10.0)]
Stream = Annotated[int, msgspec.Meta(ge=0, le=15)]


class ShapeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole shape of the link to `site` (id; None: of all links); what is left out is unlimited or off."""

    site: Text | None = None
    rate_bytes_per_s: Rate | None = None
    latency_s: Latency = 0.0
    """One way."""
    cut_in: bool = False
    cut_out: bool = False
    corrupt_probability: Probability = 0.0
    corrupt_stream_min: Stream = 0


class BreakRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`stream`: which bulk connection to `site` (id); None: the control connection."""

    site: Text
    stream: Stream | None = None


class LabRoutes:
    """The routes, over the transport that they act on."""

    def __init__(self, transport: LabTransport) -> None:
        self._transport = transport

    def routes(self) -> list[web.RouteDef]:
        """For `LocalApi`."""
        return [web.post("/v1/lab/shape", self._shape), web.post("/v1/lab/break", self._break)]

    async def _shape(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, ShapeRequest)
        shape = LinkShape(
            rate_bytes_per_s=asked.rate_bytes_per_s,
            latency_s=asked.latency_s,
            cut_in=asked.cut_in,
            cut_out=asked.cut_out,
            corrupt_probability=asked.corrupt_probability,
            corrupt_stream_min=asked.corrupt_stream_min,
            corrupt_random=random.Random(asked.corrupt_probability) if asked.corrupt_probability else None,
        )
        self._transport.shape(None if asked.site is None else SiteId(asked.site), shape)
        return json_answer(Outcome(done=True, reason="shaped", duration_s=0.0))

    async def _break(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, BreakRequest)
        done = self._transport.break_record(SiteId(asked.site), asked.stream)
        reason = "broken" if done else "there is no such connection"
        return json_answer(Outcome(done=done, reason=reason, duration_s=0.0))


class LabClient(LocalClient):
    """Asks one of the lab's daemons at the unix socket `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)

    def shape(
        self,
        site: str | None = None,
        *,
        rate_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        cut_in: bool = False,
        cut_out: bool = False,
        corrupt_probability: float = 0.0,
        corrupt_stream_min: int = 0,
    ) -> Outcome:
        """The whole shape of the daemon's link to `site` (None: of all its links)."""
        body = {
            "site": site,
            "rate_bytes_per_s": rate_bytes_per_s,
            "latency_s": latency_s,
            "cut_in": cut_in,
            "cut_out": cut_out,
            "corrupt_probability": corrupt_probability,
            "corrupt_stream_min": corrupt_stream_min,
        }
        return self.ask("POST", "/v1/lab/shape", Outcome, body)

    def break_record(self, site: str, *, stream: int | None = None) -> Outcome:
        """Break the TLS stream of one connection to `site` (None: control), so that it must be dropped."""
        return self.ask("POST", "/v1/lab/break", Outcome, {"site": site, "stream": stream})
