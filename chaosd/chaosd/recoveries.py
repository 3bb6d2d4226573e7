"""What an operator is shown of a run whose majority of voters is gone, and his word on it: the local API (spec 21).

What can be decided, and whether it may be, is the machine's matter (`membership/starting_over.py`); here names become
sites, and the peer that is followed one that this site dials.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import shlex
import time
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
from aiohttp import web

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.events import Event
from chaos_protocols.membership.starting_over import Outlook
from chaos_protocols.named_sites import NotOneSite, site_named
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.recovered import NUMBER_BYTES, WITHOUT_MAX
from chaos_protocols.wishes import FollowWanted, RecoverWithout
from chaosd.addresses import split_address
from chaosd.api.answers import Text, json_answer, read_body
from chaosd.api.status import LostMajority, Outcome
from chaosd.config.changes import CHANGES_NAME, DialledPeer
from chaosd.driver import Driver
from chaosd.trust import TrustList

ANSWER_TIMEOUT_S = 10.0
"""The machine decides at once; a disk that is slow has so long."""


class WithoutBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sites that are given up: by id, the beginning of it, or name."""

    without: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=WITHOUT_MAX)]


class FollowBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The site whose recovered run is to be this site's: by id, the beginning of it, or name."""

    site: Text


class Recoveries:
    """See the module."""

    def __init__(self, driver: Driver, trust: TrustList) -> None:
        self._driver, self._trust = driver, trust
        self._requests = itertools.count(1)

    # -- what is shown

    def told(self) -> LostMajority:
        """As of now."""
        machine, named = self._driver.machine, self._driver.names.in_text
        seen = machine.starting_over.outlook()
        return LostMajority(
            site=self._typed(machine.site),
            voters=len(seen.voters),
            missing=tuple(self._typed(site) for site in seen.missing),
            in_reach=tuple(named(short(site)) for site in seen.in_reach),
            silent_s=seen.silent_s,
            since_start=seen.since_start,
            round=seen.round,
            generation=seen.generation,
            problem=named(seen.problem),
            command=self._command(seen),
            outside=seen.outside,
            heard=tuple(named(text) for text in (one.text for one in machine.participation.recovered.heard.values())),
        )

    def _command(self, seen: Outlook) -> str:
        return " ".join(["chaosd recover", *(f"--without {self._typed(site)}" for site in seen.missing)])

    def _typed(self, site: SiteId) -> str:
        """As an operator types it: its name, or the beginning of its id where two have the name."""
        return shlex.quote(self._driver.names.in_text(short(site)))

    # -- his word

    async def recover(self, without: Iterable[str]) -> Outcome:
        """A new run of what is here, without these sites."""
        try:
            sites = tuple(site_named(text, self._sites_of_the_run(), "the sites of the run") for text in without)
        except NotOneSite as error:
            return _refused(str(error))
        number = secrets.token_bytes(NUMBER_BYTES)
        return await self._ask(lambda request: RecoverWithout(request=request, without=sites, number=number))

    async def follow(self, text: str) -> Outcome:
        """This site gives its membership up for the run that this one has recovered."""
        heard = self._driver.machine.participation.recovered.heard
        names = {one.site: one.name for one in (*self._roster.sites, *self._driver.machine.roster.sites)}
        try:
            by = site_named(
                text, [(site, names.get(site, "")) for site in heard], "the sites that have recovered this run"
            )
        except NotOneSite as error:
            return _refused(f"{error}. It is heard when one of the two dials the other")
        if problem := self._will_dial(heard[by].via, heard[by].address, names.get(heard[by].via, "")):
            return _refused(problem)
        return await self._ask(lambda request: FollowWanted(request=request, by=by))

    def _will_dial(self, via: SiteId, address: str, name: str) -> str:
        """Outside a run a site dials its peers alone: where the recovery was heard is one of them from now on. Why it
        cannot be; empty: it is."""
        if any(peer.site == via for peer in self._trust.neighbours()):
            return ""
        try:
            split_address(address)
        except ValueError:
            return (
                f"where {short(via)} listens is not known here: say so first, `chaosd peer add "
                f"{via}@HOST:PORT`, then once more"
            )
        try:
            added = self._trust.add_peer(DialledPeer(site=via, address=address, name=name))
        except OSError as error:
            return f"cannot write {CHANGES_NAME}: {error.strerror}; nothing has changed"
        return "" if added.done else added.reason

    @property
    def _roster(self) -> Roster:
        return self._driver.machine.replica.last_known

    def _sites_of_the_run(self) -> list[tuple[SiteId, str]]:
        rosters = (self._roster, self._driver.machine.roster)
        known = {one.site: one.name for roster in rosters for one in roster.sites}
        return [*known.items(), *self._trust.named(list(known))]

    async def _ask(self, make: Callable[[str], Event]) -> Outcome:
        request, begun_s = f"recovery-{next(self._requests)}", time.monotonic()
        answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self._driver.answers[request] = answer
        self._driver.feed(make(request))
        try:
            done, reason = await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
        except TimeoutError:
            done, reason = False, "the daemon has not carried it out; its log says why"
        finally:
            self._driver.answers.pop(request, None)
        named = self._driver.names.in_text(reason)
        return Outcome(done=done, reason=named, duration_s=time.monotonic() - begun_s)

    # -- the local API

    def local_routes(self) -> list[web.RouteDef]:
        """For the unix socket."""
        return [
            web.get("/v1/recovery", self._told),
            web.post("/v1/recover-without", self._recover),
            web.post("/v1/follow", self._follow),
        ]

    async def _told(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.told())

    async def _recover(self, request: web.Request) -> web.StreamResponse:
        return json_answer(await self.recover((await read_body(request, WithoutBody)).without))

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        return json_answer(await self.follow((await read_body(request, FollowBody)).site))


def _refused(reason: str) -> Outcome:
    return Outcome(done=False, reason=reason, duration_s=0.0)
