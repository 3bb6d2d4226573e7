"""Two replicas must agree on a block before it counts (`verify = "witness"`, spec 11.7).

Pure bookkeeping of the joiner: which block waits for whose word, whom to ask, who said what, who is believed. Driven by
`TransferMachine`. A source that lies consistently (wrong bytes with their right hash) passes every check of its own;
another source hashes the same range of its own snapshot. Where the two differ a third decides: the first hash that two
sources name is right, whoever named another one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chaos_protocols.names import SiteId, short
from chaos_protocols.state.transfer.assignment import Assignment
from chaos_protocols.state.transfer.effects import FetchFailed, JoinerEffect, SendHeader, SourceDropped
from chaos_protocols.wire.bulk import WitnessWant


@dataclass(slots=True)
class CrossCheck:
    """A block that came and waits for a witness."""

    start: int
    stop: int
    source: SiteId
    said: dict[SiteId, bytes]
    """Who named which hash, the source of the block among them."""
    checked: bool = False
    """Its bytes have the hash that came with them."""
    witness: SiteId | None = None
    """Who was asked and has not answered; None: nobody could be asked yet."""

    def check(self) -> None:
        """Its bytes have the hash that came with them."""
        self.checked = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessVerdict:
    """Two sources agree: the block is right or not, and these named another hash."""

    right: bool
    wrong: tuple[SiteId, ...]


class Witnesses:
    """See the module. `transfer`: its id. `assignment`: who can be asked, and owes what."""

    def __init__(self, transfer: str, assignment: Assignment) -> None:
        self._transfer, self._all = transfer, assignment
        self.waiting: dict[int, CrossCheck] = {}
        """By the start of the block."""

    def asked_of(self, site: SiteId) -> bool:
        """Whether this site owes a word."""
        return any(one.witness == site for one in self.waiting.values())

    def begin(self, source: SiteId, start: int, stop: int, digest: bytes) -> CrossCheck:
        """A block came with this hash."""
        cross_check = self.waiting[start] = CrossCheck(start=start, stop=stop, source=source, said={source: digest})
        return cross_check

    def forget(self, start: int) -> None:
        """The block did not have the hash of its own source."""
        self.waiting.pop(start, None)

    def lost(self, site: SiteId) -> None:
        """This site is not a witness any more: what it was asked is to be asked of others."""
        for one in self.waiting.values():
            if one.witness == site:
                one.witness = None

    def answered(self, site: SiteId, start: int, stop: int, digest: bytes) -> CrossCheck | None:
        """A word came; None if nobody asked for it."""
        one = self.waiting.get(start)
        if one is None or one.witness != site or one.stop != stop:
            return None
        one.said[site] = digest
        one.witness = None
        return one

    def seek(self, one: CrossCheck, now_s: float) -> list[JoinerEffect]:
        """Ask another site for its word; nothing where none can be asked."""
        ready = [source.site for source in self._all.ready if source.site not in one.said]
        owe_words = {other.witness for other in self.waiting.values()}
        witness = self._choose(one, ready or [source.site for source in self._all.usable])
        if witness is None:
            return []
        source = self._all.sources[witness]
        if not source.asked and witness not in owe_words:
            source.hear(now_s)
        want = WitnessWant(transfer=self._transfer, start=one.start, stop=one.stop)
        return [SendHeader(site=witness, header=want)]

    def _choose(self, one: CrossCheck, usable: Iterable[SiteId]) -> SiteId | None:
        """The site that has least to do and has not spoken yet; remembered as asked."""
        load = {site: 0 for site in usable if site not in one.said}
        for other in self.waiting.values():
            if other.witness in load:
                load[other.witness] += 1
        one.witness = min(load, key=lambda site: (load[site], site), default=None)
        return one.witness

    @staticmethod
    def verdict(one: CrossCheck) -> WitnessVerdict | None:
        """None: no two agree yet."""
        named = list(one.said.values())
        agreed = next((digest for digest in named if named.count(digest) > 1), None)
        if agreed is None:
            return None
        wrong = tuple(site for site, digest in one.said.items() if digest != agreed)
        return WitnessVerdict(right=one.said[one.source] == agreed, wrong=wrong)

    @staticmethod
    def undecided(one: CrossCheck) -> list[JoinerEffect]:
        """Nobody is left who could decide: who is right cannot be known."""
        reason = "the sources disagree on a block, and no third can decide"
        effects: list[JoinerEffect] = [
            SourceDropped(source=site, reason=reason, wrong=True) for site in sorted(one.said)
        ]
        names = ", ".join(map(short, sorted(one.said)))
        return [*effects, FetchFailed(reason=f"the sources {names} have different states, and no third decides")]
