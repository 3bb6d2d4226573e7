"""What the run allows a site to give, asked for and changed by operators while it runs (spec 19.8).

Whoever may open `api.sock` says what he wants; the machine tells the scheduler with each report, and the bounds change
when more than half of the members' operators want the same. A wish is not kept over a restart of the daemon.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from aiohttp import web

from chaos_protocols.events import Event
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire.bounds import Bounds, bounds_problem
from chaos_protocols.wishes import BoundsWanted
from chaosd.api.answers import json_answer, read_body
from chaosd.api.status import Outcome, RunBounds
from chaosd.worker.session import WorkerSessions


class BoundsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be another; a bound that is not named stays. `withdraw`: nothing is, what was wanted is taken back."""

    norm_max: float | None = None
    weight_max: float | None = None
    clip_radius: float | None = None
    withdraw: bool = False


class BoundedSite(Protocol):
    """What is needed of a driver."""

    @property
    def machine(self) -> SiteMachine: ...
    @property
    def workers(self) -> WorkerSessions: ...
    def feed(self, event: Event) -> None: ...


class BoundsWishes:
    """See the module."""

    def __init__(self, driver: BoundedSite) -> None:
        self._driver = driver

    def tell(self) -> RunBounds:
        """What holds, what is agreed, what this site's operator wants."""
        machine = self._driver.machine
        roster, coming = machine.roster, machine.rounds.completed_round + 1
        later = roster.bounds if coming < roster.bounds_from else None
        return RunBounds(
            holds=roster.bounds_of(coming),
            agreed=later,
            from_round=roster.bounds_from if later is not None else 0,
            wanted=machine.participation.client.bounds_wanted,
            members=len(roster.member_ids()),
        )

    def want(self, asked: BoundsBody) -> Outcome:
        """Say so from now on, until the run has other bounds than it has now."""
        machine = self._driver.machine
        roster, client = machine.roster, machine.participation.client
        if asked.withdraw:
            had = client.bounds_wanted
            self._driver.feed(BoundsWanted(bounds=None))
            return _outcome(True, f"taken back: {had}" if had is not None else "nothing was wanted")
        base = client.bounds_wanted or roster.bounds
        named = {name: value for name in base.__struct_fields__ if (value := getattr(asked, name)) is not None}
        bounds = msgspec.structs.replace(base, **named)
        if problem := bounds_problem(bounds) or self._why_not(bounds):
            return _outcome(False, problem)
        if bounds == roster.bounds:
            self._driver.feed(BoundsWanted(bounds=None))
            return _outcome(True, f"the run has them already: {bounds}")
        self._driver.feed(BoundsWanted(bounds=bounds))
        members = len(roster.member_ids())
        if members == 1:
            return _outcome(True, f"{bounds}, from a coming round on")
        return _outcome(
            True,
            f"this site wants {bounds}; they hold from a coming round on as soon as the operators of "
            f"{members // 2 + 1} of the {members} members have said exactly that, each at their own site",
        )

    def _why_not(self, bounds: Bounds) -> str:
        machine, session = self._driver.machine, self._driver.workers.session
        if machine.site not in machine.roster.member_ids():
            return "this site is no member of the run (yet): only members' operators have a say in its bounds"
        if session is not None and bounds.is_beyond(session.hello.versions.newest):
            return (
                "this site's script does not say which of its numbers are gradients: its chaos package is of an older "
                "release; install the daemon's, start the script again, then say it once more"
            )
        return ""

    def local_routes(self) -> list[web.RouteDef]:
        """For the unix socket."""
        return [web.get("/v1/bounds", self._told), web.post("/v1/bounds", self._wanted)]

    async def _told(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.tell())

    async def _wanted(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.want(await read_body(request, BoundsBody)))


def _outcome(done: bool, reason: str) -> Outcome:
    return Outcome(done=done, reason=reason, duration_s=0.0)
