"""Whether the sites' states are still the same, found out in the rounds themselves (spec 11.14 to 11.17, 11.19).

Every few rounds each worker digests a piece of its state of the end of the round before; the digests travel with the
weights in chunk 0 of the next round and come back with its result, so every site learns the same of all and needs no
message for it. The pieces go round the whole state in turn. Where two differ, the next rounds halve the piece until it
lies within one array: then most sites count, and whoever differs from them knows it, with the array, and takes the
state again.

No memory is needed for that: which piece is next follows from the digests of the last round alone (each half of a piece
has its own), so that a site that missed some is in step again after one round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from blake3 import blake3
from msgspec import structs

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.check_words import CheckWords, are_signed, unsigned
from chaos_protocols.rounds.notices import StatesDiffer
from chaos_protocols.wire.bulk import CHECK_BYTES, CHECKED_SITES_MAX
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.state_spec import ITEM_ALIGNMENT_BYTES
from chaos_protocols.wire.worker import StateDigests, StateSpec

CHECK_EVERY_ROUNDS = 4
"""So often a piece is digested while nothing differs; while something does, in every round."""

CHECK_PIECES = 128
"""A state is looked at in so many pieces, one at a time: 1 % of it, which is hashed in less than 1 % of a round."""

CHECK_PIECE_BYTES_MIN = 256 << 10
"""A smaller piece costs no less: 65 us."""

QUIET_ROUNDS_MIN = 256
QUIET_ROUNDS_MAX = 1 << 16
"""A site that differs again is not found to for so many rounds, twice as many each time: where arithmetic
itself differs (another kind of device), or a script does the same thing again, the state would be fetched for ever."""

OFFSET_BYTES = 6
HALF_BYTES = 8

Piece = tuple[int, int]
"""Bytes [start, stop) of the state."""


def middle(piece: Piece) -> int:
    """Where a piece is halved; both halves have bytes, unless it is the smallest."""
    start, stop = piece
    return start + (stop - start) // 2 // ITEM_ALIGNMENT_BYTES * ITEM_ALIGNMENT_BYTES


def piece_in_turn(round_number: int, state_bytes: int) -> Piece | None:
    """What is digested of the state of the end of that round, if nothing differs; None: nothing."""
    if round_number % CHECK_EVERY_ROUNDS or not state_bytes:
        return None
    size = piece_bytes(state_bytes)
    pieces = -(-state_bytes // size)
    start = round_number // CHECK_EVERY_ROUNDS % pieces * size
    return start, min(start + size, state_bytes)


def piece_bytes(state_bytes: int) -> int:
    """How many bytes of a state are digested at once, at most."""
    least = -(-state_bytes // CHECK_PIECES)
    return max(CHECK_PIECE_BYTES_MIN, -(-least // ITEM_ALIGNMENT_BYTES) * ITEM_ALIGNMENT_BYTES)


def is_piece(piece: Piece, state_bytes: int) -> bool:
    """Whether a worker would be asked for it: a member on the way can make up what others are said to have told."""
    start, stop = piece
    return 0 < stop - start <= piece_bytes(state_bytes) and stop <= state_bytes


def digests_of(spec: StateSpec, piece: Piece, part: memoryview) -> StateDigests:
    """What the bytes `part` of this piece of a state look like: of the arrays that lie in it, and nothing of the gaps
    between them."""
    start, stop = piece
    there = [t for t in spec.tensors if t.size_bytes and t.offset < stop and t.offset + t.size_bytes > start]
    halves = []
    for first, last in ((start, middle(piece)), (middle(piece), stop)):
        digest = blake3()
        for tensor in there:
            begin, end = max(first, tensor.offset), min(last, tensor.offset + tensor.size_bytes)
            if begin < end:
                digest.update(part[begin - start : end - start])
        halves.append(digest.digest(length=HALF_BYTES))
    single = len(there) == 1 or stop - start <= ITEM_ALIGNMENT_BYTES
    name = there[0].name if single and there else ""
    return StateDigests(start=start, stop=stop, first=halves[0], second=halves[1], array=name)


def encode_check(digests: StateDigests) -> bytes:
    """As it travels, CHECK_BYTES long."""
    offsets = digests.start.to_bytes(OFFSET_BYTES, "big") + digests.stop.to_bytes(OFFSET_BYTES, "big")
    return offsets + digests.first + digests.second


def decode_check(check: bytes) -> tuple[Piece, bytes, bytes]:
    """Piece, and the digests of its halves."""
    assert len(check) == CHECK_BYTES
    start, stop = (int.from_bytes(check[at : at + OFFSET_BYTES], "big") for at in (0, OFFSET_BYTES))
    return (start, stop), check[2 * OFFSET_BYTES : 2 * OFFSET_BYTES + HALF_BYTES], check[-HALF_BYTES:]


class StateCheck:
    """See the module. Driven by `RoundMachine`."""

    def __init__(self, site: SiteId, keys: KeyRing) -> None:
        self._words = CheckWords(site, keys)
        self._own: tuple[int, StateDigests] | None = None
        """The round at whose end the worker digested its state last, and what it found."""
        self._next: tuple[int, Piece] | None = None
        """A difference was seen in the digests of the round before this one: where to look at the end of it."""
        self._quiet: dict[SiteId, tuple[int, int]] = {}
        """Who was outvoted: for how many rounds nothing is said of it, and until which one."""

    def due(self, round_number: int, *, state_bytes: int, sites: int) -> Piece | None:
        """What the worker is to digest when its state is that of the end of the round, in which so many sites take
        part; None: nothing."""
        if not 2 <= sites <= CHECKED_SITES_MAX:
            return None
        if self._next is not None and self._next[0] == round_number and is_piece(self._next[1], state_bytes):
            return self._next[1]
        return piece_in_turn(round_number, state_bytes)

    def said(self, round_number: int, digests: StateDigests | None) -> None:
        """The worker has applied the round, and this is what it found."""
        self._own = None if digests is None else (round_number, digests)

    def part(self, roster: Roster, tag: Tag, *, idle: bool = False) -> bytes:
        """What this site says with its part of that round: of its state of the end of the round before. `idle`: workers
        were asked, and this site has none that trains."""
        own = self._own
        if own is not None and own[0] == tag.round - 1:
            return self._words.said(roster, tag, encode_check(own[1]))
        return self._words.said(roster, tag, b"") if idle else b""

    def judge(
        self, roster: Roster, tag: Tag, weights: Mapping[SiteId, float], checks: Mapping[SiteId, bytes]
    ) -> StatesDiffer | None:
        """The result of the round is here, with what all said; None: nothing differs, as far as is known yet.
        `weights`: of all sites of the round."""
        self._next = None
        if not checks:
            return None  # three rounds of four
        told, missing = _of_one_piece({site: unsigned(word) for site, word in checks.items()}), 0
        if told.differ and are_signed(roster):  # where all said the same, nobody asks who has signed it
            true = self._words.true(roster, tag, checks)
            told = _of_one_piece(true)
            missing = len(weights) - len(told.halves) - sum(not check for check in true.values())
        if not told.differ:
            return None
        piece, halves = told.piece, told.halves
        array = self._array(tag.round - 1, piece)
        if piece[1] - piece[0] > ITEM_ALIGNMENT_BYTES and not array:
            cut = middle(piece)
            first_differs = len({first for first, _ in halves.values()}) > 1
            self._next = (tag.round, (piece[0], cut) if first_differs else (cut, piece[1]))
            return None
        found = _vote(tag.round - 1, array, weights, halves, missing)
        self._quiet = {site: quiet for site, quiet in self._quiet.items() if site in weights}
        return self._news(found) if found is not None else None

    def _news(self, found: StatesDiffer) -> StatesDiffer | None:
        """Of those sites only that are not quiet; None: all are."""
        outvoted = tuple(site for site in found.outvoted if found.round >= self._quiet.get(site, (0, 0))[1])
        for site in outvoted:
            quiet = min(2 * self._quiet[site][0], QUIET_ROUNDS_MAX) if site in self._quiet else QUIET_ROUNDS_MIN
            self._quiet[site] = (quiet, found.round + quiet)
        return structs.replace(found, outvoted=outvoted) if outvoted else None

    def _array(self, round_number: int, piece: Piece) -> str:
        """The one array that the piece lies in, as this site's worker has told; empty: several, or it has not."""
        own = self._own
        mine = own is not None and own[0] == round_number and (own[1].start, own[1].stop) == piece
        return own[1].array if mine and own is not None else ""


@dataclass(frozen=True, slots=True)
class _Told:
    """What was said of one piece: the digests of its halves, by site."""

    piece: Piece
    halves: Mapping[SiteId, tuple[bytes, bytes]]

    @property
    def differ(self) -> bool:
        return len(set(self.halves.values())) > 1


def _of_one_piece(checks: Mapping[SiteId, bytes]) -> _Told:
    """Of the piece that most sites told."""
    told = {site: decode_check(check) for site, check in checks.items() if check}
    pieces = Counter(piece for piece, _, _ in told.values())
    piece = min(pieces, key=lambda one: (-pieces[one], one), default=(0, 0))
    return _Told(piece, {site: (first, second) for site, (of, first, second) in told.items() if of == piece})


def _vote(
    round_number: int,
    array: str,
    weights: Mapping[SiteId, float],
    halves: Mapping[SiteId, tuple[bytes, bytes]],
    missing: int,
) -> StatesDiffer | None:
    """Most sites count; between equals those with more weight in the round, then those with the lowest site. None: it
    could be otherwise if the `missing` sites were heard."""
    groups: dict[tuple[bytes, bytes], list[SiteId]] = {}
    for site in sorted(halves):
        groups.setdefault(halves[site], []).append(site)
    best = min(
        groups.values(), key=lambda sites: (-len(sites), -fsum(weights.get(one, 0.0) for one in sites), sites[0])
    )
    others = max(len(sites) for sites in groups.values() if sites is not best)
    if missing and len(best) <= others + missing:
        return None
    outvoted = tuple(site for site in sorted(halves) if site not in best)
    return StatesDiffer(round=round_number, array=array, outvoted=outvoted, majority=tuple(best))
