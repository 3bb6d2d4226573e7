"""Start numbers with proof: which start of a site's daemon is the newest, in words that only its key can have said.

Two daemons with one key (a copied machine, a restored backup) must not both go on. A site hands its neighbours its
start number, signed; whoever knows a newer start of a dialer shows it that signature, and the dialer, who can check it
with its own key, ends. A neighbour's bare word ends nobody, and neither does what the key signed in another run: once a
run has agreed on it (protocol 9) only a signature that names the run counts. Driven by the transport.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.wire.handshake import Hello, Verdict
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.versions import STARTS_SINCE
from chaosd.identity import Identity, verify

LABEL = b"chaos start 1\x00"
NAMED_LABEL = b"chaos start 2\x00"
"""They separate these signatures from all others. The first names no run: a start of the key, in whichever."""

STARTS_KEPT_MAX = SITES_MAX
"""Sites whose newest start is remembered; the one that was seen longest ago is forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a daemon. `signature`: of its site's key; `named`: the same, with the name of the run; each is empty
    where none was given."""

    incarnation: int
    signature: bytes = b""
    named: bytes = b""
    chain: KeyChain | None = None
    """Its key has signed them, and so it came to be the site's; None: not known."""


UNKNOWN = Start(incarnation=0)
"""No start of that site is known."""


class RunFacts(Protocol):
    """What this site knows of its run (TransportEvents)."""

    def run_id(self) -> str: ...
    def run_rules(self) -> int: ...
    def accepts(self, site: SiteId, chain: KeyChain) -> bool: ...


class Starts:
    """See the module. `run`: asked anew each time, as a run agrees on rules while links stand."""

    def __init__(self, identity: Identity, incarnation: int, run: RunFacts) -> None:
        self.incarnation = incarnation
        self._identity, self.run = identity, run
        self._newest: dict[SiteId, Start] = {}
        self._signed: dict[str, bytes] = {}
        """Of this start: by the run that it names."""

    def own(self) -> Start:
        """This start, as it is to be told now: without a run until the run has agreed to be named."""
        run = self.run.run_id()
        if not run:
            return Start(incarnation=self.incarnation, signature=self._own_signature(""))
        plain = b"" if self._names_only() else self._own_signature("")
        return Start(incarnation=self.incarnation, signature=plain, named=self._own_signature(run))

    def newest(self, site: SiteId, shown: KeyChain, agreed_on: int = 0) -> Start:
        """The newest start of a site: the one that it has proven, or a newer one that others have `agreed_on`, for
        which there is no proof here; number 0 where none is known. What it has proven counts against who has `shown`
        that same key or a former one: a later key wins over any number (spec 20.9)."""
        proven = self._newest.get(site, UNKNOWN)
        if proven.chain is not None and not self.run.accepts(site, proven.chain):  # the site has changed it since
            proven = UNKNOWN
            del self._newest[site]
        if not weighs(proven.chain, shown):
            proven = UNKNOWN
        return proven if proven.incarnation >= agreed_on else Start(incarnation=agreed_on)

    def saw(self, site: SiteId, chain: KeyChain, start: Start, run: str) -> None:
        """A connection to it stands, at whose beginning it said that it is in `run`, and showed this of its key. What
        is older, or is not proven, counts for nothing."""
        known, number, public_key = self.newest(site, chain), start.incarnation, chain.key
        if number < known.incarnation or (number == known.incarnation and (known.named or not start.named)):
            return
        plain = start.signature if verify(public_key, start.signature, _signed(site, number, "")) else b""
        named = start.named if run and verify(public_key, start.named, _signed(site, number, run)) else b""
        if not plain and not named:
            return
        if number == known.incarnation:
            plain = plain or known.signature
        self._newest.pop(site, None)
        self._newest[site] = Start(incarnation=number, signature=plain, named=named, chain=chain)
        while len(self._newest) > STARTS_KEPT_MAX:
            del self._newest[next(iter(self._newest))]

    def is_replaced(self, start: Start) -> bool:
        """Whether this proves that a daemon with this very key was started after this one, and in this run."""
        own, run, number = self._identity, self.run.run_id(), start.incarnation
        if number <= self.incarnation:
            return False
        if run and verify(own.public_key, start.named, _signed(own.site, number, run)):
            return True
        return not self._names_only() and verify(own.public_key, start.signature, _signed(own.site, number, ""))

    def _names_only(self) -> bool:
        """The run has agreed on it that a start counts in the run alone that it names."""
        return bool(self.run.run_id()) and self.run.run_rules() >= STARTS_SINCE

    def _own_signature(self, run: str) -> bytes:
        if run not in self._signed:
            self._signed[run] = self._identity.sign(_signed(self._identity.site, self.incarnation, run))
        return self._signed[run]


def weighs(known: KeyChain | None, shown: KeyChain | None) -> bool:
    """Whether the number of a start that has shown the chain `known` says anything of one that has shown the other: not
    where the latter's key came later, nor where neither came after the other. None: nothing was shown."""
    return known is None or shown is None or shown.key in known.keys


def start_of(said: Hello | Verdict) -> Start:
    """The start of whoever said this in a handshake."""
    return Start(incarnation=said.incarnation, signature=said.start, named=said.run_start)


def _signed(site: SiteId, incarnation: int, run: str) -> bytes:
    """`run`: empty where it names none. No two inputs give the same bytes: without a run every part but the last has a
    fixed length."""
    if run:
        return NAMED_LABEL + msgspec.msgpack.encode((run, site, incarnation))
    return LABEL + site.encode() + incarnation.to_bytes(8, "big")
