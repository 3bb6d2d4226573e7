"""A member that lies about what others say of their states: whatever passes through it on the way up or down a tree
comes out as it likes, at each neighbour otherwise (spec 11.19). It signs with its own keys alone.

Judged here, in every run: no site is taken for one whose state differs while nothing has changed any, but the liar
itself; or a site that was heard alone beside it. It lies only once all sites hold the rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from chaos_protocols import effects
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.check_words import check_words, unsigned
from chaos_protocols.rounds.reduce import SendBulk
from chaos_protocols.rounds.state_check import decode_check, encode_check, piece_in_turn
from chaos_protocols.wire.bulk import ChunkDown, ChunkUp
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.versions import CHECKS_SINCE
from chaos_protocols.wire.worker import StateDigests
from tests.rigs.keys import RigKeys
from tests.simulator.worker import STATE_BYTES

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

LASTS_ROUNDS = 12
"""So long one kind of lie lasts: a difference is narrowed down to one array meanwhile."""
HALVES = tuple(bytes([number]) * 8 for number in range(3))

Lie = Callable[[SiteId, bytes, Tag, bytes], bytes]
"""What is said in a site's name, by its true word, the round, and what the liar says of its own state."""


class CheckLies:
    """Of one liar."""

    def __init__(self, world: World, liar: Node) -> None:
        self._world, self._liar = world, liar
        self._rng = random.Random(f"checks/{world.seed}")
        self._heard: dict[SiteId, dict[tuple[int, int], tuple[int, bytes]]] = {}
        """By site and piece: in which round it spoke of that last, and its word."""
        self._before: dict[SiteId, dict[tuple[int, int], bytes]] = {}
        """What it had said of that piece a turn earlier: words to be said again."""
        self._lie: Lie | None = None
        self._ends = 0
        """From that round on it does something else."""
        self.told = 0
        """Headers that it has changed."""

    def passes(self, node: Node, effect: SendBulk) -> ChunkUp | ChunkDown | None:
        """What it says instead; None: the truth."""
        header, rng = effect.header, self._rng
        if node is not self._liar or not isinstance(header, ChunkUp | ChunkDown) or header.chunk:
            return None
        sites = self._of(node, header)
        true = header.checks or (b"",) * len(sites)
        for site, word in zip(sites, true, strict=True):
            self._hears(site, word, header.tag.round)
        how = self._how(header.tag.round)
        if how is None or not self._all_hold_the_rule():
            return None
        there = [*(word for site, word in zip(sites, true, strict=True) if site == effect.site), *true]
        piece = next((decode_check(unsigned(word))[0] for word in there if unsigned(word)), None)
        piece = piece or piece_in_turn(header.tag.round - 1, STATE_BYTES) or (0, 1 << 14)
        alike = encode_check(StateDigests(start=piece[0], stop=piece[1], first=HALVES[0], second=rng.choice(HALVES)))
        words = []
        for site, word in zip(sites, true, strict=True):
            if site == self._liar.site:
                words.append(self._signed(site, alike, header.tag))
            elif site == effect.site:
                words.append(word)  # who looks whether its own is there finds it
            else:
                words.append(how(site, word, header.tag, alike))
        self.told += 1
        return msgspec.structs.replace(header, checks=tuple(words))

    def _how(self, round_number: int) -> Lie | None:
        """For some rounds it goes on as it began, so that a difference is narrowed down to one array."""
        if round_number >= self._ends:
            self._lie = self._rng.choice((None, self._mixed, self._again, self._forged, self._silent))
            self._ends = round_number + self._rng.choice((1, LASTS_ROUNDS))
        return self._lie

    def _hears(self, site: SiteId, word: bytes, round_number: int) -> None:
        if not unsigned(word):
            return
        piece = decode_check(unsigned(word))[0]
        known = self._heard.setdefault(site, {})
        last = known.get(piece)
        if last is not None and last[0] < round_number:
            self._before.setdefault(site, {})[piece] = last[1]
        known[piece] = (round_number, word)

    def _all_hold_the_rule(self) -> bool:
        nodes = self._world.nodes.values()
        return all(node.machine is None or node.machine.roster.rules >= CHECKS_SINCE for node in nodes)

    def _of(self, node: Node, header: ChunkUp | ChunkDown) -> tuple[SiteId, ...]:
        assert node.bulk is not None
        (one,) = (one for one in node.bulk.averaging.machine._rounds() if one.tag == header.tag)
        place = one.trees[header.tree].place
        return place.subtree if isinstance(header, ChunkUp) else place.members

    def _signed(self, site: SiteId, check: bytes, tag: Tag) -> bytes:
        """With the liar's key, which is no other site's."""
        keys = RigKeys(self._liar.site, self._liar.disk.key_number)
        run = self._liar.machine.roster.run_id if self._liar.machine is not None else ""
        return check + keys.sign(check_words(run, tag, site, check))

    def _mixed(self, site: SiteId, true: bytes, tag: Tag, alike: bytes) -> bytes:
        kinds = (self._forged, self._again, self._idle, self._bare, self._silent)
        return true if self._rng.random() < 0.3 else self._rng.choice(kinds)(site, true, tag, alike)

    def _again(self, site: SiteId, true: bytes, tag: Tag, alike: bytes) -> bytes:
        piece = decode_check(unsigned(alike))[0]
        return self._before.get(site, {}).get(piece, true)

    def _forged(self, site: SiteId, true: bytes, tag: Tag, alike: bytes) -> bytes:
        return self._signed(site, alike, tag)

    def _idle(self, site: SiteId, true: bytes, tag: Tag, alike: bytes) -> bytes:
        return self._signed(site, b"", tag)

    def _bare(self, site: SiteId, true: bytes, tag: Tag, alike: bytes) -> bytes:
        return alike

    def _silent(self, site: SiteId, true: bytes, tag: Tag, alike: bytes) -> bytes:
        return b""


def judge(world: World, node: Node, effect: effects.Record) -> None:
    """A site says that states differ."""
    assert node.machine is not None
    if world.drifted or effect.kind != "drift" or node.machine.roster.rules < CHECKS_SINCE:
        return
    liar = world.site(world.liar) if world.liar else ""
    found = {site: until - quiet for site, (quiet, until) in node.machine.rounds.check._quiet.items()}
    outvoted = [site for site, found_in in found.items() if found_in == max(found.values())]
    alone = len(outvoted) == 1 and _alone_beside(world, liar, max(found.values()) + 1)
    if any(site != liar for site in outvoted) and not alone:
        world.oracles.fail(
            11 if liar else 4, f"{node.name} takes {effect.subject} for a site whose state differs, and none does"
        )


def _alone_beside(world: World, liar: str, round_number: int) -> bool:
    """Whether one site at most gave something to that round beside the liar: then nobody can tell which one lies."""
    given = world.oracles.rounds.parts.given
    tags = [tag for tag in given if tag.round == round_number]
    parts = given[max(tags)] if tags else {}
    return bool(liar) and sum(part.weight > 0 for site, part in parts.items() if site != liar) <= 1
