"""What a hostile site may say of keys, well formed: chains of changes that were never made, offers and approvals of
them, words that a new key is used, and entries of the log that hold these (spec 20). `FORGED` is the key that all of
them would have count; nobody has it but the liar.

Judged here (invariant 11): what the run agrees on of keys is what their sites have made and operators approved, and no
site takes a forged key for another site's.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos_protocols.agreement.key_commands import ApproveKey, KeyCommand, SettleKey, keys_of
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import KeysTold
from chaos_protocols.wire.keys import (
    APPROVALS_MAX,
    CHANGES_MAX,
    KeyApproval,
    KeyChain,
    KeyNews,
    approval_words,
    use_words,
    with_change,
)
from tests.rigs.keys import RigKeys

if TYPE_CHECKING:
    from tests.simulator.world import World

FORGED_NUMBER = 99
"""Of a key of the liar's that its site has never shown."""


def forged_key(liar: str) -> RigKeys:
    """The key that its lies would have count."""
    return RigKeys(liar, FORGED_NUMBER)


class KeyLies:
    """Made up by `liar`, which has its own keys alone, for one that knows `roster`."""

    def __init__(self, liar: SiteId, rng: random.Random, roster: Roster, sites: list[SiteId]) -> None:
        self._liar, self._rng, self._roster, self._sites = liar, rng, roster, sites
        self._own, self._forged = RigKeys(liar), forged_key(liar)

    def told(self) -> KeysTold:
        """To a neighbour."""
        return KeysTold(chains=tuple(self._chain(self._victim()) for _ in range(self._rng.randrange(4))))

    def news(self) -> KeyNews:
        """In a report."""
        rng, victim = self._rng, self._victim()
        offers = rng.choice((None, self._chain(victim), self._chain(self._liar)))
        approves = tuple(self._approval(victim) for _ in range(rng.choice((0, 1, APPROVALS_MAX))))
        uses = rng.choice((b"", self._forged.sign(use_words(self._run(), victim, self._number()))))
        return KeyNews(offers=offers, uses=uses, approves=approves)

    def command(self) -> KeyCommand:
        """An entry of the log: what a scheduler that lies could propose."""
        victim, rng = self._victim(), self._rng
        if rng.random() < 0.4:
            signature = self._forged.sign(use_words(self._run(), victim, self._number()))
            return SettleKey(site=victim, number=self._number(), signature=signature)
        by = rng.choice([*self._sites, self._liar])
        return ApproveKey(site=victim, chain=self._chain(victim), by=by, approval=self._approval(victim))

    # -- what they are made of

    def _victim(self) -> SiteId:
        return self._rng.choice(self._sites)

    def _run(self) -> str:
        return self._rng.choice((self._roster.run_id, self._roster.run_id, "ee" * 16))

    def _number(self) -> int:
        return self._rng.choice((1, 1, 2, CHANGES_MAX))

    def _chain(self, site: SiteId) -> KeyChain:
        """From what the run has agreed on, or from the first key, or from none of the site's, to the forged one; the
        changes before it may be cut short."""
        rng, known = self._rng, keys_of(self._roster, site)
        true = known.chain if known is not None else KeyChain(first=RigKeys(site).public_key)
        begins = rng.choice((true, KeyChain(first=true.first), KeyChain(first=self._own.public_key)))
        if rng.random() < 0.2:
            return begins
        chain = with_change(begins, self._run(), _Claims(begins.key, self._own), self._forged)
        if rng.random() < 0.2 and len(chain.changes) < CHANGES_MAX:
            chain = with_change(chain, chain.run_id, self._forged, self._own)
        return chain

    def _approval(self, site: SiteId) -> KeyApproval:
        """Of the forged key, or of the next one that the site may be offering; signed by the liar, in its name or in
        another one's."""
        rng, known = self._rng, keys_of(self._roster, site)
        number = 1 + len(known.chain.changes) if known is not None else self._number()
        key = rng.choice((self._forged, RigKeys(site, number)))
        key_id = SiteId(key.owner(key.public_key))
        by = rng.choice((self._own.public_key, RigKeys(rng.choice(self._sites)).public_key))
        signature = self._own.sign(approval_words(self._run(), site, number, key_id))
        return KeyApproval(
            site=site, number=min(number, CHANGES_MAX), key_id=key_id, public_key=by, signature=signature
        )


class _Claims:
    """Says that a key is its own: signs with the one that it has."""

    def __init__(self, claimed: bytes, own: RigKeys) -> None:
        self._claimed, self._own = claimed, own

    @property
    def public_key(self) -> bytes:
        return self._claimed

    def sign(self, data: bytes) -> bytes:
        return self._own.sign(data)

    def owner(self, public_key: bytes) -> str:
        return self._own.owner(public_key)

    def signed(self, public_key: bytes, signature: bytes, data: bytes) -> bool:
        return self._own.signed(public_key, signature, data)


def judge(world: World, liar: str) -> None:
    """See the module."""
    forged, roster, rotation = forged_key(liar).public_key, world.oracles.newest, world.rotation
    for node in world.nodes.values():
        if node.machine is None or node.stray:
            continue
        for site in world.nodes:
            if site != liar and node.machine.keys.counts(SiteId(site), forged):
                world.oracles.fail(11, f"{node.name} takes the key of {liar} for one of {site}")
    for one in roster.keys if roster is not None else ():
        made = rotation.made if rotation is not None and rotation.site == one.site else 0
        if one.chain.keys != tuple(RigKeys(one.site, number).public_key for number in range(len(one.chain.keys))):
            world.oracles.fail(11, f"the run has agreed on a key that {one.site} never made")
        if len(one.chain.changes) > made:
            changes = len(one.chain.changes)
            world.oracles.fail(
                11, f"the run has agreed on change {changes} of the key of {one.site}, which made {made}"
            )
