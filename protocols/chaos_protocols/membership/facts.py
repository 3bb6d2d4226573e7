"""What a site is and knows before anything happens: its facts, the roster of a new run, the last one in its journal."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from chaos_protocols.agreement.commands import apply_proven, decode_command
from chaos_protocols.agreement.raft.messages import LogEntry
from chaos_protocols.agreement.roster import Roster, SiteRecord
from chaos_protocols.agreement.views import Planner, make_view
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import BOUNDS_SINCE, UNBOUNDED, Bounds
from chaos_protocols.wire.keys import Checker
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import Origin
from chaos_protocols.wire.versions import SPOKEN, Versions

FLOOR_SINCE = 6
"""The version that brought `floor_sites`: who does not speak it would go on where the others wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """What a site knows of itself."""

    site: SiteId
    name: str
    address: str
    public_key: bytes
    incarnation: int
    run: str
    min_sites: int = 1
    """Of a founder: the run starts with so many members."""
    floor_sites: int = 1
    """Of a founder: rounds wait while fewer count."""
    versions: Versions = SPOKEN
    """Protocol versions that this daemon speaks."""
    reached: Reached = field(default_factory=Reached)
    """How far the run had come, as its journal knows."""
    bounds: Bounds = UNBOUNDED
    """What a site may give to a round, in a run that this site founds."""
    origin: Origin | None = None
    """Of which recovery this site's run is; None: of none, as far as its journal says."""


def bootstrap_roster(facts: SiteFacts, planner: Planner, run_id: str) -> Roster:
    """The roster of a new run, which `run_id` tells from all others: its founder alone, no model yet."""
    record = SiteRecord(
        site=facts.site,
        name=facts.name,
        address=facts.address,
        public_key=facts.public_key,
        incarnation=facts.incarnation,
        state="member",
        versions=facts.versions,
    )
    view = make_view(
        planner, first_round=1, members=(facts.site,), listeners=(), links=(), version=facts.versions.newest
    )
    founded = empty_roster(facts.run, facts.min_sites)
    views = (msgspec.structs.replace(view, epoch=1),)
    needs = max(BOUNDS_SINCE if facts.bounds.any else 0, FLOOR_SINCE if facts.floor_sites > 1 else 0)
    return msgspec.structs.replace(
        founded,
        epoch=1,
        sites=(record,),
        views=views,
        run_id=run_id,
        floor_sites=facts.floor_sites,
        bounds=facts.bounds,
        needs=needs,
    )


def empty_roster(run: str, min_sites: int = 1) -> Roster:
    """What a site knows that was never admitted."""
    return Roster(
        run=run,
        epoch=0,
        min_sites=min_sites,
        started=False,
        resolving=False,
        resolved_round=0,
        resolved_digest="",
        model=None,
        sites=(),
        links=(),
        views=(),
        replication=None,
        departed=(),
        banned=(),
    )


def last_known_roster(roster: Roster, entries: tuple[LogEntry, ...], checker: Checker) -> Roster:
    """After a restart: the roster as the whole journal has it. Not agreed (its end may never have been committed): good
    only to know where to dial, and which keys count, of which nothing is taken that is not proven."""
    for entry in entries:
        if entry.command and entry.index > roster.epoch:
            roster = apply_proven(roster, decode_command(entry.command), entry.index, checker)
    return roster
