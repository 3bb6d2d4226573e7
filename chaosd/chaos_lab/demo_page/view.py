"""What the demo's page shows, as it goes over the wire."""

from __future__ import annotations

from typing import Literal

import msgspec

from chaos_lab.watching import Incident, Watch
from chaosd.api.status import Status

INCIDENTS_SHOWN_MAX = 50

Stage = Literal["starting", "training", "ending", "comparing", "over"]


class SiteView(msgspec.Struct, frozen=True, kw_only=True):
    """`site`: its id. `runs`: its daemon does. `why_not`: why it cannot be killed (where it runs) or started (where it
    does not) now; empty: it can."""

    name: str
    label: str
    site: str
    state: str
    round: int | None
    phase: str | None
    runs: bool
    why_not: str


class IncidentView(msgspec.Struct, frozen=True, kw_only=True):
    """`at_s`: seconds since the lab began; `took_s`: until the effect was seen, None while it was not."""

    at_s: float
    text: str
    took_s: float | None
    outcome: str
    asked: bool


class DemoView(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: what one site says of the overlay, None while none answers; `own_pages`: each site serves a page of
    its own that a browser of this machine reaches."""

    title: str
    description: str
    network: str
    own_pages: bool
    stage: Stage
    round: int
    elapsed_s: float
    may_finish: bool
    sites: tuple[SiteView, ...]
    incidents: tuple[IncidentView, ...]
    status: Status | None


def view_of(watch: Watch, sites: list[SiteView], *, stage: Stage, may_finish: bool) -> DemoView:
    """Of what was seen at the last look."""
    processes = watch.processes
    said = [site.status for site in watch.running() if site.status is not None]
    members = [status for status in said if status.state == "member"]
    return DemoView(
        title=processes.scenario.name,
        description=processes.scenario.description,
        network=processes.network.described,
        own_pages=processes.network.kind != "namespaces",
        stage=stage,
        round=watch.round,
        elapsed_s=watch.elapsed_s,
        may_finish=may_finish,
        sites=tuple(sites),
        incidents=tuple(_incident(one) for one in watch.incidents[-INCIDENTS_SHOWN_MAX:]),
        status=max(members or said, key=lambda status: status.epoch, default=None),
    )


def _incident(one: Incident) -> IncidentView:
    return IncidentView(at_s=one.at_s, text=one.text, took_s=one.duration_s, outcome=one.outcome, asked=one.asked != "")
