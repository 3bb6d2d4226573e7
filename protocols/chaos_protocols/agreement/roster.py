"""The roster: the agreed list of member sites, links and settings, and from which round on who averages with whom.

It is the state that the agreement replicates; `agreement/commands.py` holds the only ways to change it. `epoch` is the
log index of the last command. A *view* says, from its `first_round` on, which sites contribute, which only listen
(learners), and along which trees; a round belongs to the last view that begins at or before it. While `resolving` is
set no view is in force (spec 6.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated

import msgspec

from chaos_protocols.names import RUN_ID_PATTERN, SITES_MAX, SiteId, link_key, short
from chaos_protocols.wire.bounds import UNBOUNDED, Bounds
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.keys import KEYS_KEPT_MAX, SiteKeys
from chaos_protocols.wire.plans import ReplicationPlan, Site, SyncPlan, Tag
from chaos_protocols.wire.versions import BEFORE, UNNEGOTIATED, Version, Versions, agreed

Label = Annotated[str, msgspec.Meta(max_length=64)]
RunId = Annotated[str, msgspec.Meta(pattern=RUN_ID_PATTERN)]
Address = Annotated[str, msgspec.Meta(max_length=256)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
DEPARTED_KEPT_MAX = 64
"""A site that asks late whether it has been removed still gets an answer for so many departures."""


class SiteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One site of the roster. `state`: learner | member. `incarnation` changes with each start of its daemon."""

    site: Site
    name: Label
    address: Address
    public_key: Annotated[bytes, msgspec.Meta(max_length=32)]
    incarnation: Count
    state: Annotated[str, msgspec.Meta(pattern=r"^(learner|member)\Z")]
    versions: Versions = BEFORE
    """Protocol versions that this incarnation speaks."""


class LinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the overlay; `one < other`. Rate 0 means: not measured yet."""

    one: Site
    other: Site
    rate_bytes_per_s: Annotated[float, msgspec.Meta(ge=0)]
    rtt_s: Annotated[float, msgspec.Meta(ge=0)]

    @property
    def key(self) -> tuple[SiteId, SiteId]:
        return (self.one, self.other)


class View(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Who averages, from `first_round` on. `epoch` is part of every bulk tag."""

    epoch: Count
    first_round: Count
    members: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]
    listeners: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]
    plan: SyncPlan

    @cached_property
    def links(self) -> frozenset[tuple[SiteId, SiteId]]:
        """Those that the trees of the plan use."""
        return frozenset(link_key(child, parent) for tree in self.plan.trees for child, parent in tree.parent)


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A site that is no longer in the roster: until which round it took part, and why it went."""

    site: Site
    incarnation: Count
    last_round: Count
    cause: Annotated[str, msgspec.Meta(pattern=r"^(left|failed|banned)\Z")]
    reason: Annotated[str, msgspec.Meta(max_length=1024)]
    name: Label = ""
    """Its label (since version 4)."""
    lineage: Count = 0
    """The `restore_epoch` of the run when it failed (since version 4), or left while nobody else had the state; 0: not
    told, or it took along nothing that is waited for."""
    newest_round: Count = 0
    """No state that it took along is of a later round of that lineage (since version 4)."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of the run must have in common: the digest of the state spec, and the sizes a transfer needs."""

    spec_digest: Annotated[str, msgspec.Meta(max_length=64)]
    state_bytes: Count
    shard_bytes: Annotated[int, msgspec.Meta(ge=1)]
    encoding: Annotated[str, msgspec.Meta(max_length=16)] = FP32
    """In which the numbers of a round travel (since version 6)."""


class Roster(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """See the module. `resolved_round`, `resolved_digest`: after a failure, the last round that stands, and its
    result's digest. `resolved_epoch`: when that was agreed; `restore_epoch`: when the run last took over a worker's
    state. A site compares these two with what it has acted on, so it makes no difference whether it hears the entry or
    a snapshot.

    A roster stands for many messages, and is asked the same by each: what follows from it is found once (`dict`)."""

    run: Label
    epoch: Count
    min_sites: Annotated[int, msgspec.Meta(ge=1, le=SITES_MAX)]
    started: bool
    resolving: bool
    resolved_round: Count
    resolved_digest: Annotated[str, msgspec.Meta(max_length=64)]
    model: ModelFacts | None
    sites: Annotated[tuple[SiteRecord, ...], msgspec.Meta(max_length=SITES_MAX)]
    links: Annotated[tuple[LinkRecord, ...], msgspec.Meta(max_length=SITES_MAX * 8)]
    views: Annotated[tuple[View, ...], msgspec.Meta(max_length=64)]
    replication: ReplicationPlan | None
    departed: Annotated[tuple[Departure, ...], msgspec.Meta(max_length=DEPARTED_KEPT_MAX)]
    banned: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]
    resolved_epoch: Count = 0
    restore_epoch: Count = 0
    restored_from: tuple[Site, Count] | None = None
    restored_by: Label = ""
    """The request of the operator who decided that, or on whose word it still rests (since version 4); empty: the rules
    did."""
    restored_lineage: Count = 0
    """Of the state that was taken, where an operator decided, or was heeded (since version 10); 0: not said."""
    needs: Version = 0
    """The highest version that a command applied so far needed: a site that does not speak it cannot read this."""
    run_id: RunId = ""
    """Drawn when the run was founded, and the same for good: two runs of one name have two. Empty: founded by a release
    that drew none."""
    floor_sites: Annotated[int, msgspec.Meta(ge=1, le=SITES_MAX)] = 1
    """Rounds wait while fewer members would count in them (since version 6). `min_sites` says when the run starts."""
    bounds: Bounds = UNBOUNDED
    """What a site may give to a round (since version 6); see `bounds_of`."""
    bounds_before: Bounds = UNBOUNDED
    bounds_from: Count = 0
    """In rounds before this one `bounds_before` holds: the run's sites have agreed on others since."""
    rules: Version = 0
    """The version whose rules hold at every site, for good (since version 7, `SetRules`); 0: none was agreed on."""
    keys: Annotated[tuple[SiteKeys, ...], msgspec.Meta(max_length=KEYS_KEPT_MAX)] = ()
    """Of sites that have changed theirs (since version 10), also of those that are gone; ascending. Of all others the
    key counts that their id names."""

    @cached_property
    def _records(self) -> dict[SiteId, SiteRecord]:
        return {record.site: record for record in reversed(self.sites)}

    @cached_property
    def _member_ids(self) -> tuple[SiteId, ...]:
        return tuple(record.site for record in self.sites if record.state == "member")

    @cached_property
    def _concerned(self) -> tuple[SiteId, ...]:
        return tuple(sorted(set(self.site_ids()).union(*(view.members for view in self.views))))

    @cached_property
    def _version(self) -> int:
        return min((record.versions.newest for record in self.sites), default=UNNEGOTIATED)

    @cached_property
    def settled_from(self) -> int:
        """Once this round is done, which views are in force, and which leavers have done their last round, changes with
        the roster alone."""
        begun = [view.first_round for view in self.views[1:]]
        return max((*begun, *self.last_rounds()), default=0)

    def record(self, site: SiteId) -> SiteRecord | None:
        return self._records.get(site)

    def called(self, site: SiteId) -> str:
        """Its name, for people, with the beginning of its id where another site has that name, too; where it is not in
        the roster that alone."""
        record = self._records.get(site)
        if record is None:
            return short(site)
        return f"{record.name} ({short(site)})" if record.name in self._shared_names else record.name

    @cached_property
    def _shared_names(self) -> frozenset[str]:
        counted = Counter(record.name for record in self.sites)
        return frozenset(name for name, sites in counted.items() if sites > 1)

    def member_ids(self) -> tuple[SiteId, ...]:
        """Sites that are full members (not learners), ascending."""
        return self._member_ids

    def learner_ids(self) -> tuple[SiteId, ...]:
        return tuple(record.site for record in self.sites if record.state == "learner")

    def views_in_force(self, done: int) -> tuple[View, ...]:
        """Views that some round from `done` on belongs to."""
        nexts = [view.first_round for view in self.views[1:]]
        return tuple(view for number, view in enumerate(self.views) if number == len(nexts) or nexts[number] > done)

    def site_ids(self) -> tuple[SiteId, ...]:
        return tuple(record.site for record in self.sites)

    def concerned(self) -> tuple[SiteId, ...]:
        """Every site that takes part in some round still to come: the roster's, and leavers until their last round."""
        return self._concerned

    def last_rounds(self) -> tuple[int, ...]:
        """Of those that have left, or were removed."""
        return tuple(gone.last_round for gone in self.departed)

    def gone(self, site: SiteId) -> Departure | None:
        """Its departure, also where it is back; None: it never went, or is forgotten."""
        return next((gone for gone in self.departed if gone.site == site), None)

    def knows(self, site: SiteId) -> bool:
        """It is in the run, or was, as far as that is remembered."""
        return self.record(site) is not None or self.gone(site) is not None

    def departure(self, site: SiteId, incarnation: int) -> Departure | None:
        """Of this start of it, also where that is back."""
        return next((gone for gone in self.departed if gone.site == site and gone.incarnation == incarnation), None)

    def away(self, site: SiteId, incarnation: int) -> Departure | None:
        """The departure of this start of it, unless the site is back."""
        return self.departure(site, incarnation) if self.record(site) is None else None

    def counts(self, site: SiteId, round_number: int) -> bool:
        """Whether a round cannot be done without the site, as far as the views go back; resolving or not. A member that
        still lacks the resolved round is one round before the first view, and counts as in that."""
        if not self.views:
            return site in self.member_ids()
        begun = [view for view in self.views if view.first_round <= round_number]
        return site in (begun or self.views)[-1 if begun else 0].members

    def is_short(self, view: View) -> bool:
        """Its rounds wait for more members."""
        return len(view.members) < self.floor_sites

    def bounds_of(self, round_number: int) -> Bounds:
        """What a site may give to this round."""
        return self.bounds if round_number >= self.bounds_from else self.bounds_before

    def view_of(self, round_number: int) -> View | None:
        """The view in force for a round; None while resolving or before the first view begins."""
        if self.resolving:
            return None
        chosen = None
        for view in self.views:
            if view.first_round <= round_number:
                chosen = view
        return chosen

    def tag_of(self, round_number: int) -> Tag | None:
        view = self.view_of(round_number)
        return None if view is None else Tag(epoch=view.epoch, round=round_number)

    def link(self, one: SiteId, other: SiteId) -> LinkRecord | None:
        key = link_key(one, other)
        return next((link for link in self.links if link.key == key), None)

    def version(self) -> int:
        """The newest version that every site speaks: what needs a newer one is not proposed. As etcd's cluster version,
        except that it is found from the sites of each roster; what has been used stays in `needs`."""
        return self._version

    def version_problem(self, versions: Versions) -> str:
        """Why a site that speaks these cannot take part, and what to do; empty if it can. It must read what has been
        agreed, and share a version with every site, since any site may send it a message by way of others."""
        if versions.newest < self.needs:
            return (
                f"the run uses protocol {self.needs}, the site speaks {versions}: "
                "install the chaos-train there that the others have"
            )
        for record in self.sites:
            if record.versions != BEFORE and agreed(record.versions, versions) is None:
                return (
                    f"the site speaks protocol {versions}, {record.name} {record.versions}, and they share none: "
                    "install a newer chaos-train at the one with the older version"
                )
        return ""

    def neighbours(self, site: SiteId) -> tuple[SiteId, ...]:
        found = [link.other if link.one == site else link.one for link in self.links if site in link.key]
        return tuple(sorted(found))

    def plan_uses(self, one: SiteId, other: SiteId) -> bool:
        """Whether some view still in force averages over this link."""
        key = link_key(one, other)
        return any(key in view.links for view in self.views)


def component_of(origin: SiteId, sites: Iterable[SiteId], links: Iterable[tuple[SiteId, SiteId]]) -> set[SiteId]:
    """The connected part of the overlay of these sites, `origin` among them, that `origin` is in."""
    neighbours: dict[SiteId, set[SiteId]] = {site: set() for site in sites}
    for one, other in links:
        if one in neighbours and other in neighbours:
            neighbours[one].add(other)
            neighbours[other].add(one)
    part, frontier = {origin}, [origin]
    while frontier:
        new = neighbours[frontier.pop()] - part
        part |= new
        frontier += new
    return part
