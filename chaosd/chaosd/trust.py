"""Which sites may connect to this one and whom it dials: what the configuration says, what the operator has changed by
command since, and every site of the roster.

Who knocked in vain is remembered by the machine (`links/refusals.py`, the one store of refusals): an id that has
knocked is proven, the handshake has seen its key, so the operator compares its words with what the other institution
reads out and types nothing but its beginning. What is changed counts at once and after a restart (`config/changes.py`).

Decides who is trusted; `Neighbours.keeps_out` asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Annotated

import msgspec
from aiohttp import web

from chaos_protocols.effects import Record
from chaos_protocols.events import PeersChanged
from chaos_protocols.fingerprint import words_of
from chaos_protocols.named_sites import BEGINNING, NotOneSite, site_named
from chaos_protocols.names import SITE_ID_CHARACTERS, SITES_MAX, SiteId, short
from chaos_protocols.wire.site_status import BANS_MAX
from chaos_protocols.wishes import BansChanged
from chaosd.addresses import split_address
from chaosd.after_block import told_of_block
from chaosd.api.answers import Text, json_answer, read_body, refusal
from chaosd.api.status import BlockedSite, ListedPeer, Outcome, PendingSite, TrustedSite
from chaosd.config.changes import CHANGES_NAME, SITE_ID, DialledPeer, ListChanges, read_changes, write_changes
from chaosd.config.model import SiteConfig
from chaosd.driver import Driver

NAME_CHARACTERS_MAX = 64
BY_COMMAND, BY_CONFIGURATION, AS_PEER, IN_THE_RUN = "command", "configuration", "peer", "site of the run"
BEFORE_RECOVERY = "site of the run before its recovery"
BANNED = "{site} was banned from the run, for good: that institution comes back with a new key (`chaosd init`)"


class TrustBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: an id, or the beginning of one that has knocked (`pending`: of these alone); or, with `add` false, the
    beginning or the name of one that is listed."""

    site: Text
    add: bool = True
    pending: bool = False


class BlockBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: an id, or the beginning or the name of a site of the run or of a neighbour. `add` false: undone; `ban`:
    and out of the run, if most members say so."""

    site: Text
    add: bool = True
    ban: bool = False
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""


class PeerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`site`: an id; to remove one, its beginning or name will do. `address`: where it listens, to add one."""

    site: Text
    add: bool
    address: Annotated[str, msgspec.Meta(max_length=256)] = ""
    name: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""


class TrustList:
    """See the module. Raises ConfigError where the file of changes cannot be used."""

    def __init__(self, config: SiteConfig, driver: Driver, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        """Replaced when the configuration is read again."""
        self._driver, self._clock = driver, clock
        self._changes = read_changes(config.data_dir)
        driver.conduct.block(self._changes.blocked)

    def __contains__(self, site: object) -> bool:
        return site in self._changes.trusted(self.config) or any(site == peer.site for peer in self.neighbours())

    def neighbours(self) -> list[DialledPeer]:
        """Whom this site dials by configuration or command."""
        return self._changes.neighbours(self.config)

    @property
    def is_open(self) -> bool:
        """Every site that has proven itself may connect."""
        return self.config.admission == "open"

    def told(self, config: SiteConfig | None = None) -> PeersChanged:
        """What the machine is told of the lists (of a site of that configuration): where everybody may connect it
        believes, while it was in no run yet, its peers or, if it has none, the sites on its list, and nobody else."""
        config = config or self.config
        peers = tuple((peer.site, peer.address) for peer in self._changes.neighbours(config))
        listed = tuple(site for site, _ in peers) or tuple(self._changes.trusted(config))
        return PeersChanged(peers=peers, sponsors=listed if config.admission == "open" else None)

    def named(self, sites: Collection[SiteId]) -> list[tuple[SiteId, str]]:
        """These with their names: that which this site's operator has given, and that of the run; else with ""."""
        roster, known = self._driver.machine.roster, self._driver.names.known()
        own = [(peer.site, peer.name) for peer in self.neighbours() if peer.site in sites and peer.name]
        told = {site: one.name if (one := roster.record(site) or roster.gone(site)) else "" for site in sites}
        return own + [(site, name or known.get(site, "")) for site, name in told.items()]

    def names(self, own: str) -> dict[SiteId, str]:
        """What this site's operator calls others, and this site itself (`own`)."""
        return {self._driver.machine.site: own} | {peer.site: peer.name for peer in self.neighbours() if peer.name}

    def called(self, site: SiteId) -> str:
        """What a site is called before people: by this site's operator, else in the roster, else by its id alone."""
        _, name = self.named([site])[0]
        return f"{name} ({short(site)})" if name else short(site)

    def pending(self) -> list[PendingSite]:
        """Who knocked in vain, the latest last."""
        now_s, now_unix_s = self._driver.now_s(), self._clock()
        return [
            PendingSite(
                site=site,
                first_unix_s=now_unix_s - (now_s - one.first_s),
                last_unix_s=now_unix_s - (now_s - one.last_s),
                times=one.count,
                words=words_of(site),
            )
            for site, one in self._driver.machine.network.refusals.of_strangers().items()
            if site not in self and site not in self._changes.blocked
        ]

    def lets_in(self, site: SiteId) -> str:
        """What lets a site connect; empty: it is not listed (with `admission = "open"` it may all the same)."""
        return next((one.by for one in self.trusted() if one.site == site), "")

    def trusted(self) -> list[TrustedSite]:
        """Everybody who may connect, with what lets it."""
        listed = dict.fromkeys(self._changes.trusted(self.config), BY_CONFIGURATION)
        listed |= dict.fromkeys(self._changes.trust, BY_COMMAND)
        for peer in self.neighbours():
            listed.setdefault(peer.site, AS_PEER)
        own = self._driver.machine.site
        for site in self._driver.machine.roster.site_ids():
            if site != own:
                listed.setdefault(site, IN_THE_RUN)
        origin = self._driver.machine.facts.origin
        for site in origin.sites if origin is not None else ():
            listed.setdefault(site, BEFORE_RECOVERY)
        return [
            TrustedSite(site=site, called=self.called(site), by=by, words=words_of(site)) for site, by in listed.items()
        ]

    def peers(self) -> list[ListedPeer]:
        """The neighbours that this site dials."""
        up, changed = self._driver.machine.links.up_sites(), {peer.site for peer in self._changes.peers}
        return [
            ListedPeer(
                site=peer.site,
                address=peer.address,
                called=self.called(peer.site),
                by=BY_COMMAND if peer.site in changed else BY_CONFIGURATION,
                up=peer.site in up,
            )
            for peer in self.neighbours()
        ]

    # -- changes. Each raises OSError where it cannot be written down: then nothing has changed.

    def trust(self, text: str, *, pending_only: bool = False) -> Outcome:
        """Trust a site from now on: by its whole id, or by the beginning of one that has knocked."""
        found = self._one_of([SiteId(one.site) for one in self.pending()], text, "the sites that have knocked")
        if SITE_ID.fullmatch(text) and not pending_only:
            found = SiteId(text)
        if isinstance(found, Outcome):
            whole = f". Another one is named by its whole id, of {SITE_ID_CHARACTERS} characters: this has {len(text)}"
            told = found if pending_only else _refused(found.reason + whole)
            return (self._no_more_pending(text) if pending_only else None) or told
        if found == self._driver.machine.site:
            return _refused(f"{found} is this site itself")
        if found in self._driver.machine.roster.banned:
            return _refused(BANNED.format(site=found))
        if found in self._changes.trusted(self.config):
            return _done(f"{found} was trusted already")
        if len(self._changes.trust) >= SITES_MAX:
            return _refused(f"{SITES_MAX} sites are trusted already")
        self._take(self._changes.with_trust(found), f"{self.called(found)} is trusted")
        return _done(f"{found} may connect from now on{self._if_unblocked(found)}; it tries again by itself")

    def _no_more_pending(self, text: str) -> Outcome | None:
        """Who accepts twice is told that it has worked; and whose site is shut out, that it is."""
        roster = self._driver.machine.roster
        known = {*self._changes.trusted(self.config), *roster.site_ids()} - {self._driver.machine.site}
        begin_so = [one for one in {*known, *roster.banned, *self._changes.blocked} if one.startswith(text)]
        if len(begin_so) != 1:
            return None
        (found,) = begin_so
        if found in roster.banned:
            return _refused(BANNED.format(site=found))
        if found in self._changes.blocked:
            return _refused(f"{self.called(found)} is blocked here: `chaosd unblock {short(found)}` first")
        return _done(f"{self.called(found)} may connect already")

    def accept(self, site: str) -> Outcome:
        """Let in one that has knocked. Nothing is raised."""
        try:
            return self.trust(site, pending_only=True)
        except OSError as error:
            return self._not_written(error)

    def distrust(self, text: str) -> Outcome:
        """Take a site off the list of trusted ones."""
        found = self._one_of(self._changes.trusted(self.config), text, "the sites on the list")
        if isinstance(found, Outcome):
            return found
        self._take(self._changes.without_trust(found, self.config), f"{self.called(found)} is trusted no more")
        kept = [f"is a peer (`chaosd peer remove {short(found)}`)"] if found in self else []
        if found in self._driver.machine.roster.site_ids():
            kept.append("is a site of the run, which all its sites let connect")
        if kept:
            return _done(f"{found} is off the list; it may connect all the same, since it {' and '.join(kept)}")
        return _done(f"{found} may not connect any more; a link that it has stays until it ends")

    def started(self) -> None:
        """The machine runs: it is told whom this site's operator wants out."""
        self._driver.feed(BansChanged(sites=self._changes.bans))

    def block(self, text: str, reason: str, *, ban: bool = False) -> Outcome:
        """No link with this site from now on, whatever lets it connect; one that is there ends. `ban`: and it is to be
        out of the run, as soon as more than half of the other members say so, too."""
        driver, found = self._driver, self._known_here(text)
        if isinstance(found, Outcome):
            return found
        if found in (self._changes.bans if ban else self._changes.blocked):
            return _done(f"{found} was {'banned' if ban else 'blocked'} already")
        if len(self._changes.blocked) >= SITES_MAX or (ban and len(self._changes.bans) >= BANS_MAX):
            return _refused(f"{BANS_MAX if ban else SITES_MAX} sites are on that list already")
        changes = self._changes.with_ban(found) if ban else self._changes.with_block(found)
        why = f": {reason}" if reason else ""
        told = told_of_block(driver.machine, found, ban=ban)  # as it stands before
        self._take(changes, f"{self.called(found)} is {'banned by this site' if ban else 'blocked'}{why}")
        driver.feed(BansChanged(sites=self._changes.bans))
        driver.conduct.block(self._changes.blocked)
        driver.transport.close_link(found, "blocked by this site's operator")
        return _done(told)

    def change_block(self, asked: BlockBody) -> Outcome:
        """`block` or `unblock`. Nothing is raised."""
        try:
            return self.block(asked.site, asked.reason, ban=asked.ban) if asked.add else self.unblock(asked.site)
        except OSError as error:
            return self._not_written(error)

    def _known_here(self, text: str) -> SiteId | Outcome:
        """Another site, by its whole id, or by the name or the beginning of one of the run, or that was in it, or of a
        neighbour: who was blocked by one operator has failed before the next one says it."""
        machine = self._driver.machine
        own = machine.site
        if SITE_ID.fullmatch(text) and text != own:
            return SiteId(text)
        near = {*machine.roster.site_ids(), *machine.links.up_sites(), *(one.site for one in self.neighbours())}
        near |= {*machine.network.refusals.of_strangers(), *(gone.site for gone in machine.roster.departed)}
        return self._one_of(sorted(near - {own}), text, "the sites that are known here")

    def unblock(self, text: str) -> Outcome:
        """What `block` did is undone."""
        found = self._one_of(self._changes.blocked, text, "the blocked sites")
        if isinstance(found, Outcome):
            return found
        self._take(self._changes.without_block(found), f"{self.called(found)} is blocked no more")
        self._driver.conduct.block(self._changes.blocked)
        self._driver.feed(BansChanged(sites=self._changes.bans))
        if found in self._driver.machine.roster.banned:
            return _done(f"{found} is blocked no more by this site alone. {BANNED.format(site=found)}")
        return _done(f"{found} may connect again, if it is trusted, a peer, or a site of the run")

    def _if_unblocked(self, site: SiteId) -> str:
        """What else has to be done before a site that is let in may connect."""
        return f", once `chaosd unblock {short(site)}` is said, too" if site in self._changes.blocked else ""

    def add_peer(self, peer: DialledPeer) -> Outcome:
        """Dial a neighbour from now on; who is dialled may connect."""
        if peer.site in self._driver.machine.roster.banned:
            return _refused(BANNED.format(site=peer.site))
        if peer in self.neighbours():
            return _done(f"{peer.site} at {peer.address} was a peer already")
        if len(self._changes.peers) >= SITES_MAX:
            return _refused(f"{SITES_MAX} peers are named already")
        self._take(self._changes.with_peer(peer), f"{peer.name or short(peer.site)} at {peer.address} is a peer")
        may = f"may connect{self._if_unblocked(peer.site)}"
        return _done(f"{peer.site} is dialled at {peer.address} from now on, and {may}")

    def remove_peer(self, text: str) -> Outcome:
        """Do not dial a neighbour any more. A link that the run has agreed on stays."""
        found = self._one_of([peer.site for peer in self.neighbours()], text, "the peers")
        if isinstance(found, Outcome):
            return found
        called = self.called(found)
        self._take(self._changes.without_peer(found, self.config), f"{called} is no peer any more")
        if found in self._driver.machine.roster.site_ids():
            return _done(f"{found} is no peer any more; a link of the run stays until `chaosd link remove {text}`")
        return _done(f"{found} is not dialled any more")

    def _one_of(self, sites: Collection[SiteId], text: str, what: str) -> SiteId | Outcome:
        """By the name that this site's operator has given it, or that it has in the run."""
        try:
            return site_named(text, self.named(sites), what)
        except NotOneSite as error:
            return _refused(str(error))

    def _take(self, changes: ListChanges, words: str) -> None:
        write_changes(self.config.data_dir, changes)
        before, self._changes = self.told(), changes
        if self.told() != before:
            self._driver.feed(self.told())
        told = Record(
            kind="reload", subject=self.config.name, cause="command", outcome="done", duration_s=None, reason=words
        )
        self._driver.record(told)

    # -- the local API

    def local_routes(self) -> list[web.RouteDef]:
        """For the unix socket."""
        return [
            web.get("/v1/pending", self._tell_pending),
            web.get("/v1/trust", self._tell_trusted),
            web.post("/v1/trust", self._change_trust),
            web.get("/v1/blocked", self._tell_blocked),
            web.post("/v1/block", self._change_block),
            web.get("/v1/peers", self._tell_peers),
            web.post("/v1/peer", self._change_peer),
        ]

    async def _tell_pending(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.pending())

    async def _tell_trusted(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.trusted())

    async def _tell_peers(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self.peers())

    async def _tell_blocked(self, request: web.Request) -> web.StreamResponse:
        return json_answer([BlockedSite(site=one, called=self.called(one)) for one in self._changes.blocked])

    async def _change_block(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, BlockBody)
        demand_printable(asked)
        return json_answer(self.change_block(asked))

    async def _change_trust(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, TrustBody)
        if not asked.add:
            return self._answer(lambda: self.distrust(asked.site))
        if not BEGINNING.fullmatch(asked.site):
            raise refusal(400, "a site is let in by its id, which no other can have; not by a name")
        return self._answer(lambda: self.trust(asked.site, pending_only=asked.pending))

    async def _change_peer(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, PeerBody)
        if not asked.add:
            return self._answer(lambda: self.remove_peer(asked.site))
        if not SITE_ID.fullmatch(asked.site):
            raise refusal(400, "a peer is added by its whole id, as `chaosd id` prints it over there")
        if asked.site == self._driver.machine.site:
            raise refusal(400, f"{asked.site} is this site itself")
        if not (asked.address + asked.name).isprintable() or asked.name != asked.name.strip():
            raise refusal(400, "address and name must be printable, without spaces at the ends")
        try:
            split_address(asked.address)
        except ValueError as error:
            raise refusal(400, f"address = {asked.address!r}: {error}") from None
        peer = DialledPeer(site=SiteId(asked.site), address=asked.address, name=asked.name)
        return self._answer(lambda: self.add_peer(peer))

    def _answer(self, change: Callable[[], Outcome]) -> web.Response:
        try:
            return json_answer(change())
        except OSError as error:
            return json_answer(self._not_written(error))

    def _not_written(self, error: OSError) -> Outcome:
        path = self.config.data_dir / CHANGES_NAME
        return _refused(f"cannot write {path}: {error.strerror}; nothing has changed")


def demand_printable(asked: BlockBody) -> None:
    """Raises the refusal of a request whose texts a terminal might obey."""
    if not (asked.site + asked.reason).isprintable():
        raise refusal(400, "site and reason must be printable")


def _done(reason: str) -> Outcome:
    return Outcome(done=True, reason=reason, duration_s=0.0)


def _refused(reason: str) -> Outcome:
    return Outcome(done=False, reason=reason, duration_s=0.0)
