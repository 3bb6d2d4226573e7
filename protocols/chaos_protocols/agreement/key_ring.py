"""Which keys count for whom at this site: what the run has agreed on, and what neighbours show of what this site may
have slept through (spec 20.5).

A key that was shown counts only if a chain of signatures leads to it from one that counts by what was agreed: so
whoever shows it can do no more than who has that key. What is shown is never kept over a restart, nor agreed on by it.
Driven by `RosterReplica` (what is agreed) and `Network` (what is told); asked by the agreement for votes, by the driver
for words that others hand on, and by the transport.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyChain, Signer, SiteKeys

CHAINS_CHECKED_MAX = 1024
"""Chains of which it is remembered whether their signatures are right: each takes up to 16 checks of 0.1 ms."""


class KeyRing:
    """See the module. `signer`: this site's key. It is the agreement's `Keys`."""

    def __init__(self, signer: Signer, own: KeyChain | None = None) -> None:
        self.own = own if own is not None else KeyChain(first=signer.public_key)
        """How this site's key came to be what it is, as its key file says."""
        self._signer = signer
        self._run_id = ""
        self._agreed: dict[SiteId, SiteKeys] = {}
        self._told: dict[SiteId, dict[SiteId, KeyChain]] = {}
        """By neighbour: what it has told of whom. So none of them takes away what another one told."""
        self._sound: dict[KeyChain, bool] = {}

    # -- the agreement's Keys

    @property
    def public_key(self) -> bytes:
        """The one that this site uses."""
        return self._signer.public_key

    def sign(self, data: bytes) -> bytes:
        """With that one."""
        return self._signer.sign(data)

    def verify(self, site: SiteId, public_key: bytes, signature: bytes, data: bytes) -> bool:
        """Whether this key counts for the site, and has signed these bytes. False on malformed input."""
        return self.counts(site, public_key) and self._signer.signed(public_key, signature, data)

    def has_signed(self, site: SiteId, public_key: bytes, signature: bytes, data: bytes) -> bool:
        """Whether a key of the site has signed these bytes that counts by what was agreed; where it was never changed,
        `public_key`, as the roster has it."""
        return any(self._signer.signed(key, signature, data) for key in self._counting(site, public_key))

    # -- which keys count

    @property
    def signer(self) -> Signer:
        """The cryptography of this site."""
        return self._signer

    def agreed(self, site: SiteId) -> SiteKeys | None:
        """What the run has agreed on; None: its key was never changed, as far as is known here."""
        return self._agreed.get(site)

    def counts(self, site: SiteId, public_key: bytes) -> bool:
        """Whether what this key has signed is the site's word."""
        return self.chain_of(site, public_key) is not None

    def chain_of(self, site: SiteId, public_key: bytes) -> KeyChain | None:
        """How this key has come to be the site's, as far as is known here; None: it does not count."""
        if public_key in self._counting(site, public_key):
            known = self._agreed.get(site)
            return known.chain.until(public_key) if known is not None else KeyChain(first=public_key)
        for chains in self._told.values():
            chain = chains.get(site)
            if chain is not None and public_key in chain.keys and self._leads(site, chain, public_key):
                return chain.until(public_key)
        return None

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        """Whether who shows this chain, and has the newest key of it, is that site."""
        return self.counts(site, chain.key) or (bool(chain.changes) and self._leads(site, chain, chain.key))

    def _counting(self, site: SiteId, public_key: bytes) -> tuple[bytes, ...]:
        known = self._agreed.get(site)
        if known is not None:
            return known.counting
        return (public_key,) if self._signer.owner(public_key) == site else ()

    def _leads(self, site: SiteId, chain: KeyChain, public_key: bytes) -> bool:
        """Whether it is a chain of this site in this run, and leads to the key from one that counts."""
        if self._signer.owner(chain.first) != site or (self._run_id and chain.run_id != self._run_id):
            return False
        keys = chain.keys
        counting = self._counting(site, chain.first)
        begins = min((at for at, key in enumerate(keys) if key in counting), default=len(keys))
        return begins <= keys.index(public_key) and self._is_sound(chain)

    def _is_sound(self, chain: KeyChain) -> bool:
        found = self._sound.get(chain)
        if found is None:
            while len(self._sound) >= CHAINS_CHECKED_MAX:
                del self._sound[next(iter(self._sound))]
            found = self._sound[chain] = chain.is_sound(self._signer)
        return found

    # -- what is known

    def follow(self, run_id: str, keys: Iterable[SiteKeys]) -> list[SiteId]:
        """The run has agreed on these; of which sites that is news. It never goes back: after a restart the whole
        journal counts, though not all of it is known to be agreed yet. A site that uses its new key does so for
        good. A chain that its keys have not signed is none, whoever has put it into a roster."""
        news = []
        self._run_id = run_id
        for one in keys:
            known = self._agreed.get(one.site)
            if known is not None and (len(known.chain.changes), known.settled) >= (len(one.chain.changes), one.settled):
                continue
            if self._signer.owner(one.chain.first) == one.site and self._is_sound(one.chain):
                self._agreed[one.site] = one
                news.append(one.site)
        return news

    def chains(self) -> tuple[KeyChain, ...]:
        """What a neighbour may have slept through: of all sites that have changed their keys, this one among them."""
        found = {chain.first: chain for chain in (one.chain for one in self._agreed.values())}
        if len(self.own.changes) > len(found.get(self.own.first, KeyChain(first=b"")).changes):
            found[self.own.first] = self.own
        return tuple(found.values())

    def told(self, neighbour: SiteId, chains: Iterable[KeyChain]) -> None:
        """A neighbour that is of the run shows these. Nothing of it is checked before it is needed."""
        self._told[neighbour] = {SiteId(self._signer.owner(chain.first)): chain for chain in chains if chain.changes}

    def forget(self, neighbour: SiteId) -> None:
        """The link to this neighbour is gone: what it has told goes with it."""
        self._told.pop(neighbour, None)


class NoKeys:
    """Of a machine that is given no keys: signs nothing, takes nothing for signed."""

    public_key = b""

    def sign(self, data: bytes) -> bytes:
        return b""

    def owner(self, public_key: bytes) -> str:
        return ""

    def signed(self, public_key: bytes, signature: bytes, data: bytes) -> bool:
        return False
