"""What an operator has changed by command while the daemon ran: peers and trusted sites, beside the configuration.

`chaosd peer`, `chaosd trust` and `chaosd accept` change one file of the data directory, never the configuration file:
that one belongs to whoever writes it (an editor, a deployment), and may lie where the daemon cannot write. What was
changed by command wins over what the configuration says, as in PostgreSQL's `postgresql.auto.conf`. Written whole or
not at all; read at the start and by `chaosd doctor`.

Light: no pydantic. Decides which of the two counts, and nothing else.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_protocols.names import SITE_ID_CHARACTERS, SITES_MAX, SiteId
from chaosd.addresses import split_address
from chaosd.config.file import CONFIG_BYTES_MAX, ConfigError
from chaosd.storage.durable import write_durably

if TYPE_CHECKING:
    from chaosd.config.model import SiteConfig

CHANGES_NAME = "changes.toml"
FORMER_NAME = "trusted"
"""Ids that an earlier release let in, one a line: read as trusted, gone with the first change."""

HEAD = """\
# What was changed by `chaosd peer`, `chaosd trust`, `chaosd accept`, `chaosd block` and `chaosd ban`. It wins over the
# configuration.
# Written by the daemon while it runs; to undo a change use the commands.
"""
SITE_ID = re.compile(rf"[0-9a-f]{{{SITE_ID_CHARACTERS}}}")
FIELDS = ("trust", "trust_removed", "peers", "peers_removed", "blocked", "bans")


@dataclass(frozen=True, slots=True, kw_only=True)
class DialledPeer:
    """A neighbour to dial, and what it is called here (may be empty)."""

    site: SiteId
    address: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListChanges:
    """Of the lists of a configuration. A site is never in a list and in its list of removed ones."""

    trust: tuple[SiteId, ...] = ()
    trust_removed: tuple[SiteId, ...] = ()
    peers: tuple[DialledPeer, ...] = ()
    peers_removed: tuple[SiteId, ...] = ()
    blocked: tuple[SiteId, ...] = ()
    """No link with these, whatever else names them."""
    bans: tuple[SiteId, ...] = ()
    """Those of them that are to be out of the run, if most members say so."""

    # -- what holds

    def trusted(self, config: SiteConfig) -> list[SiteId]:
        """Who may connect beside the peers, in the order of the lists."""
        named = [site for site in config.trust if site not in self.trust_removed]
        return list(dict.fromkeys([*named, *self.trust]))

    def neighbours(self, config: SiteConfig) -> list[DialledPeer]:
        """Whom this site dials."""
        changed = {*self.peers_removed, *(peer.site for peer in self.peers)}
        named = [DialledPeer(site=SiteId(one.site), address=one.address, name=one.name) for one in config.peers]
        return [*(peer for peer in named if peer.site not in changed), *self.peers]

    # -- changes: each gives the lists that hold from then on

    def with_trust(self, site: SiteId) -> ListChanges:
        """Trusted from now on."""
        others = tuple(one for one in self.trust_removed if one != site)
        return replace(self, trust=(*self._trust_but(site), site), trust_removed=others)

    def without_trust(self, site: SiteId, config: SiteConfig) -> ListChanges:
        """On no list of trusted sites from now on. A name in the configuration is struck out here."""
        removed = tuple(one for one in self.trust_removed if one != site and one in config.trust)
        named = (site,) if site in config.trust else ()
        return replace(self, trust=self._trust_but(site), trust_removed=(*removed, *named))

    def with_peer(self, peer: DialledPeer) -> ListChanges:
        """Dialled from now on; another address of one that is known replaces the former."""
        others = tuple(one for one in self.peers_removed if one != peer.site)
        return replace(self, peers=(*self._peers_but(peer.site), peer), peers_removed=others)

    def without_peer(self, site: SiteId, config: SiteConfig) -> ListChanges:
        """Not dialled for the configuration's sake any more."""
        named = {one.site for one in config.peers}
        removed = tuple(one for one in self.peers_removed if one != site and one in named)
        return replace(self, peers=self._peers_but(site), peers_removed=(*removed, *((site,) if site in named else ())))

    def with_block(self, site: SiteId) -> ListChanges:
        """No link with it from now on."""
        return replace(self, blocked=(*(one for one in self.blocked if one != site), site))

    def with_ban(self, site: SiteId) -> ListChanges:
        """Blocked, and wanted out of the run."""
        return replace(self.with_block(site), bans=(*(one for one in self.bans if one != site), site))

    def without_block(self, site: SiteId) -> ListChanges:
        """It may connect again, where something lets it."""
        bans = tuple(one for one in self.bans if one != site)
        return replace(self, blocked=tuple(one for one in self.blocked if one != site), bans=bans)

    def _trust_but(self, site: SiteId) -> tuple[SiteId, ...]:
        return tuple(one for one in self.trust if one != site)

    def _peers_but(self, site: SiteId) -> tuple[DialledPeer, ...]:
        return tuple(one for one in self.peers if one.site != site)


def read_changes(data_dir: Path) -> ListChanges:
    """What was changed by command; nothing where there is no file. Raises ConfigError."""
    path = data_dir / CHANGES_NAME
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
    except FileNotFoundError:
        return ListChanges(trust=_former(data_dir / FORMER_NAME))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        if len(data) > CONFIG_BYTES_MAX:
            raise ValueError(f"is longer than {CONFIG_BYTES_MAX} bytes")
        return _checked(tomllib.loads(data.decode()))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: {error}; the daemon writes this file alone: bring back a copy, or remove it and say again with "
            "`chaosd trust` and `chaosd peer` what was changed"
        ) from None


def write_changes(data_dir: Path, changes: ListChanges) -> None:
    """Whole or not at all: half a list would lock somebody out. Raises OSError; then nothing has changed."""
    path, text = data_dir / CHANGES_NAME, _text(changes)
    assert _checked(tomllib.loads(text)) == changes
    write_durably(path, text.encode(), 0o600)
    (data_dir / FORMER_NAME).unlink(missing_ok=True)


def _text(changes: ListChanges) -> str:
    lists = ("trust", "trust_removed", "peers_removed", "blocked", "bans")
    lines = [f"{field} = {json.dumps(list(getattr(changes, field)))}\n" for field in lists]
    for peer in changes.peers:
        name = f"name = {json.dumps(peer.name, ensure_ascii=False)}\n" if peer.name else ""
        address = json.dumps(peer.address, ensure_ascii=False)  # TOML knows no surrogates, which JSON escapes with
        lines.append(f'\n[[peers]]\nsite = "{peer.site}"\naddress = {address}\n{name}')
    return HEAD + "".join(lines)


def _checked(values: dict[str, Any]) -> ListChanges:
    if unknown := set(values) - set(FIELDS):
        raise ValueError(f"there is no field {min(unknown)[:40]!r}")
    ids = {field: tuple(_id(one) for one in _list(values, field)) for field in FIELDS if field != "peers"}
    return ListChanges(**ids, peers=tuple(_peer(one) for one in _list(values, "peers")))


def _list(values: dict[str, Any], field: str) -> list[Any]:
    found = values.get(field, [])
    if not isinstance(found, list) or len(found) > SITES_MAX:
        raise ValueError(f"{field} must be a list of at most {SITES_MAX}")
    return found


def _id(value: object) -> SiteId:
    if not isinstance(value, str) or not SITE_ID.fullmatch(value):
        raise ValueError(f"{str(value)[:40]!r} is no site id")
    return SiteId(value)


def _peer(value: object) -> DialledPeer:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError("a peer is a table of texts")
    if set(value) - {"site", "address", "name"} or "address" not in value:
        raise ValueError("a peer has `site`, `address` and may have a `name`")
    split_address(value["address"])
    return DialledPeer(site=_id(value.get("site")), address=value["address"], name=value.get("name", ""))


def _former(path: Path) -> tuple[SiteId, ...]:
    try:
        with path.open("rb") as file:
            lines = file.read(CONFIG_BYTES_MAX).decode("ascii", "replace").split()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return tuple(dict.fromkeys(SiteId(line) for line in lines if SITE_ID.fullmatch(line)))[:SITES_MAX]


def with_names(config: SiteConfig, called: Mapping[str, str]) -> SiteConfig:
    """With what the daemon calls the peers that nobody here has given a name."""
    said = {site: name for site, name in called.items() if name.isprintable()}
    peers = tuple(peer.model_copy(update={"name": peer.name or said.get(peer.site, "")}) for peer in config.peers)
    return config.model_copy(update={"peers": peers})
