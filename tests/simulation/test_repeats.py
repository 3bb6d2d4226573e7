"""A word of before that comes again, handed on by another neighbour: what a daemon reads of such, and no more."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

from tests.rigs.keys import RigKeys
from tests.simulation.test_faults import training
from tests.simulator.network import CONTROL
from tests.simulator.replaying import is_refused_each_time
from tests.unit.protocols.links.test_naming import RUN, brought, report, request, schedules
from tests.unit.protocols.one_site import B, sent

from chaos_protocols.events import EnvelopeReceived
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import JoinAnswer
from chaos_protocols.wire.versions import NAMES_SINCE, Versions

GUEST = SiteId("e" * 32)


def test_a_word_that_is_handed_on_bears_its_makers_key_and_is_read_only_if_that_counts() -> None:
    """A direct word is not signed: handed on as it was, a thief's passed for the site's (seed 3650, 4 sites, with slow
    links)."""
    world = training("abc")
    direct = (one for one in world.delivered if one.kind == CONTROL and one.source == one.message.source)
    word = next(one for one in direct if one.message.destination == one.site)
    reader, maker = world.nodes[word.site], SiteId(word.source)
    counts, stolen = (RigKeys(maker, number).public_key for number in (0, 7))
    heard: list[tuple[str, bytes]] = []
    reader.handle = lambda event: heard.append((event.neighbour, event.envelope.public_key))  # type: ignore
    for key in (counts, stolen):
        world.delivered = deque([word._replace(key=key)])
        for seed in range(20):
            world.repeat(random.Random(seed))
    (other,) = set(reader.connections) - {maker}
    assert set(heard) == {(other, counts), (maker, b"")}, "over its own link it is not signed"


def test_a_request_that_a_run_can_only_refuse_may_be_answered_as_often_as_it_comes() -> None:
    """Of a word that names no run nothing else counts, not even that it came before (spec 4.19; seed 9345404)."""
    for newest, refused in ((NAMES_SINCE - 1, True), (NAMES_SINCE, False)):
        bench = schedules()
        node: Any = SimpleNamespace(machine=bench.machine)
        speaks = Versions(oldest=2, newest=newest)
        brought(bench, B, report(B, GUEST, speaks), by=B, run=RUN)
        envelope = bench.envelope(GUEST, request(speaks))
        assert is_refused_each_time(node, B, envelope) is refused
        assert not is_refused_each_time(node, GUEST, envelope), "over its own link it is of this run"
        event = EnvelopeReceived(neighbour=B, envelope=envelope)
        assert [bool(sent(bench.handle(event), JoinAnswer)) for _ in range(2)] == [refused, refused]
