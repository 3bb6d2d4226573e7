"""A site's key and how it came to be the one that it is: what is shown, signed and agreed when a site changes its key
(spec 20).

A site's id is that of its first key for good. A *chain* is that key and every change since, each signed by the key
before it and by the new one; so whoever takes the first key of a chain for the site's can follow it to the last.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from chaos_protocols.names import RUN_ID_PATTERN, SITE_ID_CHARACTERS, SiteId

CHANGES_MAX = 8
"""Of one site's key, over the life of a run: a chain of them fits beside a hello in one frame of the handshake."""
KEYS_KEPT_MAX = 256
"""Sites of a run that have changed their keys: what is agreed on them stays for good, so that a key which counts no
more never counts again. 350 KB of a roster at most."""
APPROVALS_MAX = 8
"""Changes that a site's operator has approved and that are not agreed yet."""

PublicKey = Annotated[bytes, msgspec.Meta(max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(max_length=64)]
Number = Annotated[int, msgspec.Meta(ge=1, le=CHANGES_MAX)]
RunName = Annotated[str, msgspec.Meta(pattern=RUN_ID_PATTERN)]
Name = Annotated[SiteId, msgspec.Meta(max_length=SITE_ID_CHARACTERS)]

CHANGE_LABEL = b"chaos key change 1\x00"
APPROVAL_LABEL = b"chaos key approval 1\x00"
USE_LABEL = b"chaos key use 1\x00"


class Checker(Protocol):
    """Cryptography, given to the protocols, which do none themselves."""

    def owner(self, public_key: bytes) -> str:
        """The id of a site whose first key this is; empty on malformed input."""
        ...

    def signed(self, public_key: bytes, signature: bytes, data: bytes) -> bool:
        """Whether this key has signed these bytes; False on malformed input."""
        ...


class Signer(Checker, Protocol):
    """The same with the key of one site."""

    @property
    def public_key(self) -> bytes: ...
    def sign(self, data: bytes) -> bytes: ...


class KeyChange(msgspec.Struct, frozen=True, array_like=True):
    """One change: the new key, and what the former one and the new one have signed (`change_words`)."""

    key: PublicKey
    by_former: Signature
    by_new: Signature


class KeyChain(msgspec.Struct, frozen=True, kw_only=True):
    """A site's first key, and what has followed it in the run `run_id`."""

    first: PublicKey
    run_id: RunName = ""
    """Empty: it was never changed."""
    changes: Annotated[tuple[KeyChange, ...], msgspec.Meta(max_length=CHANGES_MAX)] = ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All of them, the oldest first."""
        return (self.first, *(change.key for change in self.changes))

    @property
    def key(self) -> bytes:
        """The newest."""
        return self.changes[-1].key if self.changes else self.first

    def replaces(self, key: bytes) -> bool:
        """Whether this key came before the newest one, which therefore wins over it (spec 20.9). Of two chains that
        part, neither's key replaces the other's."""
        return bool(self.changes) and key in self.keys[:-1]

    def until(self, key: bytes) -> KeyChain:
        """As it was when this was its newest key."""
        return msgspec.structs.replace(self, changes=self.changes[: self.keys.index(key)])

    def is_sound(self, checker: Checker) -> bool:
        """Whether each change was signed by both keys, for this site, this run and this number."""
        site, former = checker.owner(self.first), self.first
        if not site or (self.changes and not self.run_id):
            return False
        for number, change in enumerate(self.changes, start=1):
            words = change_words(self.run_id, site, number, former, change.key)
            if not checker.signed(former, change.by_former, words) or not checker.signed(
                change.key, change.by_new, words
            ):
                return False
            former = change.key
        return len({*self.keys}) == len(self.keys)


class SiteKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has agreed on about the keys of one site. `settled`: which of its keys (0: the first) is the oldest
    that still counts; it and all after it do, two at most."""

    site: Name
    chain: KeyChain
    settled: Annotated[int, msgspec.Meta(ge=0, le=CHANGES_MAX)]

    @property
    def counting(self) -> tuple[bytes, ...]:
        """The keys that count, the oldest first."""
        return self.chain.keys[self.settled :]

    @property
    def is_settled(self) -> bool:
        """The site uses its newest key, and no other counts."""
        return self.settled == len(self.chain.changes)


class KeyApproval(msgspec.Struct, frozen=True, kw_only=True):
    """Another site's operator says that the change `number` of `site` is to the key with this id. Signed by that other
    site (`approval_words`)."""

    site: Name
    number: Number
    key_id: Name
    public_key: PublicKey
    signature: Signature


class KeyNews(msgspec.Struct, frozen=True, kw_only=True):
    """What a site tells the scheduler of keys."""

    offers: KeyChain | None = None
    """Its own with the next key at its end, which is to be agreed on; None: it wants no other."""
    uses: Signature = b""
    """It uses the newest of its keys that the run has agreed on (`use_words`); empty: it does not, or all know."""
    approves: Annotated[tuple[KeyApproval, ...], msgspec.Meta(max_length=APPROVALS_MAX)] = ()
    """What its operator has approved."""


class KeysTold(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To a neighbour (since version 10): chains of sites that have changed their keys, as far as the sender knows. The
    neighbour may have slept through that, and hear of those sites through others alone."""

    chains: Annotated[tuple[KeyChain, ...], msgspec.Meta(max_length=KEYS_KEPT_MAX)]


def change_words(run_id: str, site: str, number: int, former: bytes, key: bytes) -> bytes:
    """What both keys sign of a change."""
    return CHANGE_LABEL + msgspec.msgpack.encode((run_id, site, number, former, key))


def approval_words(run_id: str, site: str, number: int, key_id: str) -> bytes:
    """What the approving site signs."""
    return APPROVAL_LABEL + msgspec.msgpack.encode((run_id, site, number, key_id))


def use_words(run_id: str, site: str, number: int) -> bytes:
    """What the new key signs when the site has begun to use it."""
    return USE_LABEL + msgspec.msgpack.encode((run_id, site, number))


def with_change(chain: KeyChain, run_id: str, old: Signer, new: Signer) -> KeyChain:
    """`chain` with one more change: from `old`, its last key, to `new`."""
    words = change_words(run_id, old.owner(chain.first), len(chain.changes) + 1, old.public_key, new.public_key)
    change = KeyChange(new.public_key, old.sign(words), new.sign(words))
    return KeyChain(first=chain.first, run_id=run_id, changes=(*chain.changes, change))
