"""The commands of the agreement: the only ways in which the roster changes, and what each of them does.

The scheduler makes a command from the roster as it stands and proposes it; every site applies it when it is committed.
A command carries everything that was decided (views with their sync plans, the replication plan), so that applying it
decides nothing. Views in a command are written with epoch 0 where they are new: `apply` fills in the command's own log
index.

How they may change (docs/decisions/0015): every site applies every command in the same way, so a new one, or a new
field with a default, is entered in `COMMANDS_SINCE` or `FIELDS_SINCE` with the version that brought it, and is
proposed only when every site of the roster speaks that version (`version_needed`, `Roster.version`; as etcd's cluster
version). Names that are changed are entered in `wire/former.py`: journals hold the former ones.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, assert_never

import msgspec

from chaos_protocols.agreement.key_commands import ApproveKey, SettleKey, why_not, with_keys
from chaos_protocols.agreement.raft.messages import AppendRequest, RaftMessage, SnapshotRequest
from chaos_protocols.agreement.roster import (
    DEPARTED_KEPT_MAX,
    Count,
    Departure,
    Label,
    LinkRecord,
    ModelFacts,
    Roster,
    SiteRecord,
    View,
)
from chaos_protocols.agreement.since import needed
from chaos_protocols.agreement.stored import Stored
from chaos_protocols.names import SITES_MAX, SiteId, other_run
from chaos_protocols.wire.bounds import BOUNDS_SINCE, Bounds
from chaos_protocols.wire.encodings import ENCODINGS_SINCE
from chaos_protocols.wire.former import FORMER
from chaos_protocols.wire.keys import Checker
from chaos_protocols.wire.plans import HOLDS_SINCE, TREES_SINCE, ReplicationPlan, Site, SyncPlan
from chaos_protocols.wire.versions import BEFORE, CUTS_SINCE, KEYS_SINCE, NEWEST, PROOFS_SINCE, RULED, Version, Versions

Views = Annotated[tuple[View, ...], msgspec.Meta(max_length=64)]


class TooNew(ValueError):
    """A command or a roster that only a newer version can read; the text names both versions."""


class SetRestorePoint(Stored, frozen=True, kw_only=True, tag=True):
    """The run's state is, from now on, that of the worker of `record`'s site at the end of `round`: how a run is
    founded, and how it goes on when every daemon was restarted and no other member has the state."""

    record: SiteRecord
    links: Annotated[tuple[LinkRecord, ...], msgspec.Meta(max_length=SITES_MAX)]
    round: Count
    model: ModelFacts
    views: Views
    operator: Label = ""
    """The request of the operator who decided it (since version 4); empty: the rules did."""
    lineage: Count = 0
    """Of the state, where that rests on an operator's word (since version 10); 0: not said, or a fresh worker's."""


class AddSite(Stored, frozen=True, kw_only=True, tag=True):
    """Admit a learner: it listens from the last view's first round on, and gets the state of the round before that."""

    record: SiteRecord
    links: Annotated[tuple[LinkRecord, ...], msgspec.Meta(max_length=SITES_MAX)]
    views: Views
    replication: ReplicationPlan


class Replicate(Stored, frozen=True, kw_only=True, tag=True):
    """Give the state once more to a site of the roster: its worker was restarted, or a learner's transfer failed."""

    views: Views
    replication: ReplicationPlan


class PromoteSite(Stored, frozen=True, kw_only=True, tag=True):
    """The learner is level: it contributes from the last view's first round on. `waits`: it is not level, and that
    round waits for it."""

    site: Site
    views: Views
    waits: bool = False


class RenewSite(Stored, frozen=True, kw_only=True, tag=True):
    """A member's daemon was restarted before anybody missed it: the same site, a new incarnation, its worker
    without the state. The running round is resolved, since what the old incarnation had of it is gone."""

    site: Site
    incarnation: Count
    address: Annotated[str, msgspec.Meta(max_length=256)]
    views: Views
    versions: Versions = BEFORE
    """What the new incarnation speaks: institutions change their software by restarting the daemon."""


class SetVoters(Stored, frozen=True, kw_only=True, tag=True):
    """Nothing but the agreement's own configuration changes (it travels beside the command)."""


class RemoveSite(Stored, frozen=True, kw_only=True, tag=True):
    """`left`: contributes until `last_round`; `views` go on without it. `failed`, `banned`: the running round must be
    resolved."""

    departure: Departure
    resolve: bool
    views: Views


class AddLink(Stored, frozen=True, kw_only=True, tag=True):
    """A new link, or new rates of a known one; `more`: of others, known ones, too (since version 5)."""

    link: LinkRecord
    views: Views
    more: Annotated[tuple[LinkRecord, ...], msgspec.Meta(max_length=SITES_MAX)] = ()


class RemoveLink(Stored, frozen=True, kw_only=True, tag=True):
    """`resolve`: the link failed and the running round may hang on it."""

    one: Site
    other: Site
    resolve: bool
    views: Views
    reason: Annotated[str, msgspec.Meta(max_length=1024)]


class RetryRound(Stored, frozen=True, kw_only=True, tag=True):
    """The running round ended without a result (every contribution had weight 0), and now a member has the state: it is
    resolved, and so begins again under a new epoch, to which that member contributes."""

    views: Views
    reason: Annotated[str, msgspec.Meta(max_length=1024)]


class RoundResolved(Stored, frozen=True, kw_only=True, tag=True):
    """The running round is resolved: the result of `round` stands (its digest; who holds it), the views begin after
    it."""

    round: Count
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    holders: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]
    views: Views


class SetBounds(Stored, frozen=True, kw_only=True, tag=True):
    """What a site may give, from the last view's first round on, is another (since version 6). `by`: whose operators
    wanted it."""

    bounds: Bounds
    by: Annotated[tuple[Site, ...], msgspec.Meta(max_length=SITES_MAX)]
    views: Views


class SetRules(Stored, frozen=True, kw_only=True, tag=True):
    """Every site speaks `version`, and from now on nothing is taken that breaks its rules (since version 7): leaders
    show their votes; with 8, words that are handed on name the run. A site that speaks an older one can come in no
    more."""

    version: Version
    views: Views


Command = (
    SetRestorePoint
    | AddSite
    | Replicate
    | PromoteSite
    | RenewSite
    | SetVoters
    | RemoveSite
    | AddLink
    | RemoveLink
    | RetryRound
    | RoundResolved
    | SetBounds
    | SetRules
    | ApproveKey
    | SettleKey
)

COMMANDS_SINCE: dict[type[Stored], int] = {
    SetBounds: BOUNDS_SINCE,
    SetRules: PROOFS_SINCE,
    ApproveKey: KEYS_SINCE,
    SettleKey: KEYS_SINCE,
}
"""Commands that came after version OLDEST, and with which."""

FIELDS_SINCE: dict[tuple[type[msgspec.Struct], str], int] = {
    (ReplicationPlan, "hold_s"): HOLDS_SINCE,
    (SyncPlan, "several"): TREES_SINCE,
    (SyncPlan, "fine"): CUTS_SINCE,
    (AddLink, "more"): TREES_SINCE,
    (ModelFacts, "encoding"): ENCODINGS_SINCE,
    (SetRestorePoint, "operator"): 4,
    (SetRestorePoint, "lineage"): 10,
    (Departure, "name"): 4,
    (Departure, "lineage"): 4,
    (Departure, "newest_round"): 4,
}
"""Fields that came after version OLDEST, of commands and of the structs in them, and with which. A field that has its
default is as good as not there."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_roster_decoder = msgspec.msgpack.Decoder(Roster)


def version_needed(command: Command) -> int:
    """The version that a site must speak to apply this command as it was meant; 0: all do."""
    since = COMMANDS_SINCE.get(type(command), 0)
    if isinstance(command, SetRules):
        since = max((since, *(one for one in RULED if one <= command.version)))  # who speaks less cannot keep them
    return max(since, needed(command, frozenset(FIELDS_SINCE.items()))) if FIELDS_SINCE else since


def encode_command(command: Command) -> bytes:
    needs = version_needed(command)
    return _encoder.encode(msgspec.structs.replace(command, needs=needs) if needs else command)


@lru_cache(maxsize=32)
def decode_command(data: bytes) -> Command:
    """Kept for a while: a command is read when it comes, and again when it is committed. Raises TooNew, and what
    msgspec raises."""
    command: Command = FORMER.read(data, Command) if FORMER.may_be_in(data) else _decoder.decode(data)
    if command.needs > NEWEST:
        raise TooNew(_too_new("a command of the run's log", command.needs))
    return command


def encode_roster(roster: Roster) -> bytes:
    return _encoder.encode(roster)


def decode_roster(data: bytes) -> Roster:
    """Raises TooNew, and what msgspec raises."""
    roster: Roster = FORMER.read(data, Roster) if FORMER.may_be_in(data) else _roster_decoder.decode(data)
    if roster.needs > NEWEST:
        raise TooNew(_too_new("the run's roster", roster.needs))
    return roster


def _too_new(what: str, needs: int) -> str:
    return (
        f"{what} needs protocol {needs}, and this chaos-train speaks up to {NEWEST}: a run that all sites have "
        "brought to a newer version cannot be entered with an older one. Install the newer chaos-train"
    )


def readable(message: RaftMessage) -> bool:
    """Whether every command and roster that this message wants stored can be read: to be asked before it is."""
    try:
        match message:
            case AppendRequest(entries=entries):
                for entry in entries:
                    if entry.command:
                        decode_command(entry.command)
            case SnapshotRequest(snapshot=snapshot):
                decode_roster(snapshot.state)
            case _:
                pass
    except (msgspec.DecodeError, ValueError, RecursionError):  # TooNew and UnicodeDecodeError are ValueErrors
        return False
    return True


def of_another_run(message: RaftMessage, run_id: str) -> bool:
    """Whether the roster that this message wants stored, readable as it is, is that of another run."""
    return isinstance(message, SnapshotRequest) and other_run(run_id, decode_roster(message.snapshot.state).run_id)


def apply_proven(roster: Roster, command: Command, index: int, checker: Checker) -> Roster:
    """`apply_command`, as a site does it: what is about a site's key changes nothing unless it is proven."""
    if isinstance(command, ApproveKey | SettleKey) and why_not(roster, checker, command):
        return roster
    return apply_command(roster, command, index)


def apply_command(roster: Roster, command: Command, index: int) -> Roster:
    """The roster after `command`, committed at log `index`."""
    replace = msgspec.structs.replace
    match command:
        case SetVoters():
            return roster
        case SetRestorePoint(record=record, links=links, model=model, round=restored):
            changed = replace(
                roster,
                sites=_with_site(roster.sites, record),
                links=_with_links(roster.links, links),
                model=model,
                resolving=False,
                resolved_round=restored,
                resolved_digest="",
                resolved_epoch=index,
                restore_epoch=index,
                restored_from=(record.site, record.incarnation),
                restored_by=command.operator,
                restored_lineage=command.lineage,
                replication=None,
                bounds_from=0,  # rounds before the change may be done once more, under what holds now
            )
        case AddSite(record=record, links=links, replication=replication):
            changed = replace(
                roster,
                sites=_with_site(roster.sites, record),
                links=_with_links(roster.links, links),
                replication=replication,
            )
        case Replicate(replication=replication):
            changed = replace(roster, replication=replication)
        case PromoteSite(site=site):
            sites = tuple(replace(record, state="member") if record.site == site else record for record in roster.sites)
            changed = replace(roster, sites=sites, replication=_unless_for(roster.replication, site))
        case RenewSite(site=site):
            sites = tuple(_renewed(record, command) if record.site == site else record for record in roster.sites)
            changed = replace(roster, sites=sites, resolving=True, replication=_unless_for(roster.replication, site))
        case RemoveSite(departure=departure, resolve=resolve):
            changed = _without_site(roster, departure, resolve)
        case AddLink(link=link, more=more):
            changed = replace(roster, links=_with_links(roster.links, (link, *more)))
        case RemoveLink(one=one, other=other, resolve=resolve):
            links = tuple(link for link in roster.links if link.key != (one, other))
            changed = replace(roster, links=links, resolving=roster.resolving or resolve)
        case RetryRound():
            changed = replace(roster, resolving=True)
        case RoundResolved(round=resolved, digest=digest):
            plan = roster.replication  # a snapshot of a round that is void would mix two histories
            changed = replace(
                roster,
                resolving=False,
                resolved_round=resolved,
                resolved_digest=digest,
                resolved_epoch=index,
                replication=None if plan is not None and plan.round > resolved else plan,
            )
        case SetBounds(bounds=bounds, views=views):
            begins = views[-1].first_round if views else 0
            changed = replace(roster, bounds=bounds, bounds_before=roster.bounds_of(begins - 1), bounds_from=begins)
        case SetRules(version=version):
            changed = replace(roster, rules=max(roster.rules, version))
        case ApproveKey() | SettleKey():
            return _installed(with_keys(roster, command), command, roster.views, index)
        case _:
            assert_never(command)
    return _installed(changed, command, command.views, index)


def _installed(roster: Roster, command: Command, views: tuple[View, ...], index: int) -> Roster:
    replace = msgspec.structs.replace
    numbered = tuple(view if view.epoch else replace(view, epoch=index) for view in views)
    members = sum(record.state == "member" for record in roster.sites)
    started = roster.started or (roster.model is not None and members >= roster.min_sites)
    needs = max(roster.needs, command.needs)
    return replace(roster, epoch=index, views=numbered, started=started, needs=needs)


def _renewed(record: SiteRecord, start: RenewSite) -> SiteRecord:
    return msgspec.structs.replace(
        record, incarnation=start.incarnation, address=start.address, versions=start.versions
    )


def _without_site(roster: Roster, departure: Departure, resolve: bool) -> Roster:
    site = departure.site
    departed = (*(gone for gone in roster.departed if gone.site != site), departure)[-DEPARTED_KEPT_MAX:]
    return msgspec.structs.replace(
        roster,
        sites=tuple(record for record in roster.sites if record.site != site),
        links=tuple(link for link in roster.links if site not in link.key),
        resolving=roster.resolving or resolve,
        departed=departed,
        banned=(*roster.banned, site) if departure.cause == "banned" else roster.banned,
        replication=_unless_for(roster.replication, site),
    )


def _unless_for(replication: ReplicationPlan | None, site: SiteId) -> ReplicationPlan | None:
    return None if replication is not None and replication.joiner == site else replication


def _with_site(known: tuple[SiteRecord, ...], new: SiteRecord) -> tuple[SiteRecord, ...]:
    others = (one for one in known if one.site != new.site)
    return tuple(sorted((*others, new), key=lambda one: one.site))


def _with_links(known: tuple[LinkRecord, ...], new: tuple[LinkRecord, ...]) -> tuple[LinkRecord, ...]:
    merged = {link.key: link for link in known} | {link.key: link for link in new}
    return tuple(merged[key] for key in sorted(merged))
