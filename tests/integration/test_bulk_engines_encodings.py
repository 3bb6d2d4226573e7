"""The reduce engine with encodings: the same bytes everywhere, fewer of them on the links, nothing lost for good, over
links that break and rounds that begin again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rigs.reduce import CHAIN, SITES, SPEC, Driver, Rig

from chaos_protocols.names import SiteId
from chaos_protocols.wire.encodings import FORMS, FP32
from chaos_protocols.wire.plans import Tag
from chaosd.bulk.reduce.coded import CodedVector

LOSSY = [name for name in FORMS if name != FP32]
FOUR = SITES[:4]
WIDE = 5_000
ERROR = {"bf16": 0.01, "fp16": 0.002, "int8": 0.06, "int4": 0.8}
"""Of one round, over the mean (norms): some encodings one after the other."""
Array = NDArray[np.float64]


@asynccontextmanager
async def running(name: str, sites: list[SiteId] = FOUR) -> AsyncIterator[Rig]:
    rig = Rig(sites)
    rig.connect(CHAIN)
    for driver in rig.drivers.values():
        driver.configure(msgspec.structs.replace(SPEC, encoding=name))
    yield rig
    await rig.close()


def fill(driver: Driver, seed: int, common: Array) -> Array:
    rng = np.random.default_rng(seed)
    wide, narrow = rng.standard_normal(WIDE), (common + rng.standard_normal(len(common))).astype(np.float32)
    driver.arena[:] = wide.tobytes() + narrow.tobytes()
    return np.concatenate([wide, narrow.astype(np.float64)])


async def one_round(rig: Rig, number: int, weights: dict[SiteId, float], *, redone: int = 0) -> tuple[Array, Array]:
    """What all sites hold, and the mean of what they gave. `redone`: so often it begins again before."""
    drivers = rig.drivers
    common = np.random.default_rng(0).standard_normal(60_001)
    wanted = sum(
        (
            weights[site] * fill(driver, 100 * number + index, common)
            for index, (site, driver) in enumerate(drivers.items())
        ),
        start=np.zeros(WIDE + 60_001),
    )
    for epoch in range(redone + 1):
        tag = Tag(epoch=number * 10 + epoch, round=number)
        for site, driver in drivers.items():
            driver.engine.open(tag, CHAIN, [], True)
            driver.engine.contribute(tag, weights[site], weights[site] > 0)
        if epoch < redone:
            await asyncio.sleep(0.002 * epoch)
            if any(tag in driver.finished for driver in drivers.values()):
                continue
            for driver in drivers.values():
                driver.engine.stop(tag)
    await rig.until(*(lambda one=driver: tag in one.finished for driver in drivers.values()))
    assert len({driver.finished[tag] for driver in drivers.values()}) == 1, "one digest"
    (held,) = {bytes(driver.engine.result(number) or b"") for driver in drivers.values()}
    found = np.concatenate([np.frombuffer(held[: 8 * WIDE]), np.frombuffer(held[8 * WIDE :], np.float32)])
    return found, wanted / sum(weights.values())


def distance(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("name", LOSSY)
async def test_all_sites_hold_the_same_bytes_near_the_mean_and_float64_exactly(name: str) -> None:
    async with running(name) as rig:
        for number in range(1, 6):
            weights = {site: float((index + number) % 4) for index, site in enumerate(FOUR)}
            found, mean = await one_round(rig, number, weights)
            np.testing.assert_allclose(found[:WIDE], mean[:WIDE], rtol=1e-12, atol=1e-15)
            assert 0 < distance(found[WIDE:], mean[WIDE:]) < ERROR[name]


@pytest.mark.parametrize("name", LOSSY)
async def test_fewer_bytes_travel(name: str) -> None:
    sent: dict[str, int] = {}
    for one in (FP32, name):
        async with running(one) as rig:

            def count(_source: SiteId, _to: SiteId, _header: bytes, payload: bytes, one: str = one) -> bytes:
                sent[one] = sent.get(one, 0) + len(payload)
                return payload

            rig.network.spoil = count
            await one_round(rig, 1, dict.fromkeys(FOUR, 1.0))
    narrow, wide = 4 * 60_001, 8 * WIDE
    assert sent[FP32] == 6 * (narrow + wide), "up and down three links"
    assert sent[name] - 6 * wide == pytest.approx(6 * narrow * FORMS[name].bits / 32, rel=0.13)


async def sum_of_rounds(rounds: int, redone: int = 0) -> float:
    """How far the sum of the results is from that of the means."""
    async with running("int8") as rig:
        total, wanted = np.zeros(60_001), np.zeros(60_001)
        for number in range(1, rounds + 1):
            found, mean = await one_round(rig, number, dict.fromkeys(FOUR, 2.0), redone=redone)
            total += found[WIDE:]
            wanted += mean[WIDE:]
    return distance(total, wanted)


async def test_over_thirty_rounds_feedback_delivers_what_encodings_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    with_feedback = await sum_of_rounds(30)
    begins = CodedVector.__init__

    def without(self: CodedVector, *arguments: Any, **named: Any) -> None:
        begins(self, *arguments, **{**named, "feedback": False})

    monkeypatch.setattr(CodedVector, "__init__", without)
    assert with_feedback < await sum_of_rounds(30) / 3


async def test_rounds_that_begin_again_deliver_as_much() -> None:
    """What a tag that was stopped had lost counts for nothing: counted once more, the sum would drift away."""
    assert await sum_of_rounds(12, redone=2) < 2 * await sum_of_rounds(12)


async def test_the_sum_of_results_and_of_what_is_still_owed_is_that_of_what_was_given() -> None:
    """With constant weights, exactly but for the rounding of float32: nothing is lost for good."""
    rounds, weights = 8, {site: float(index + 1) for index, site in enumerate(FOUR)}
    async with running("int8") as rig:
        total = np.zeros(60_001)
        for number in range(1, rounds + 1):
            found, mean = await one_round(rig, number, weights, redone=number % 3)
            total += mean[WIDE:] - found[WIDE:]
        owed = np.zeros(60_001)
        for driver in rig.drivers.values():
            vectors = driver.engine._all()
            tags = [tag for tag in driver.finished if tag.round == rounds]
            (_, layout), coded = vectors._layouts[tags[-1].round], vectors.coded
            for tree, carried in enumerate(layout.of_tree):
                share = share_of(driver.site, tree, weights)
                for index in carried:
                    if coded.codes(index):
                        start = coded._starts[index]
                        stop = start + layout.chunks[index].size_bytes // 4
                        lost = coded._now.lost[coded._now.residuals.side(index)]
                        owed[start:stop] += share * lost[start:stop]
    assert float(np.abs(total - owed).max()) < 1e-5 < float(np.abs(total).max())


def share_of(site: SiteId, tree: int, weights: dict[SiteId, float]) -> float:
    """Of the subtree of a site in the whole."""
    parent = dict(CHAIN.trees[tree].parent)

    def is_below(one: SiteId) -> bool:
        return one == site or (one in parent and is_below(parent[one]))

    return sum(weight for one, weight in weights.items() if is_below(one)) / sum(weights.values())


async def test_links_that_break_change_no_bit() -> None:
    """What a link carried twice is the same bytes twice: encoded once."""

    async def digests(breaks: bool) -> list[str]:
        rng = random.Random(5)
        async with running("int8") as rig:
            breaking = asyncio.create_task(rig.network.break_links(rng)) if breaks else None
            for number in range(1, 6):
                await one_round(rig, number, dict.fromkeys(FOUR, 1.0))
            if breaking is not None:
                breaking.cancel()
            return [told[0] for told in rig.drivers[FOUR[0]].finished.values()]

    assert await digests(True) == await digests(False)


@pytest.mark.parametrize("name", LOSSY)
async def test_a_nan_that_was_given_is_found_by_all_and_named(name: str) -> None:
    """By a script that did not look. The round counts for nobody, and leaves nothing behind."""
    async with running(name) as rig:
        for number, odd in ((1, False), (2, True), (3, False)):
            tag = Tag(epoch=1, round=number)
            for index, (site, driver) in enumerate(rig.drivers.items()):
                values = driver.fill(number * 10 + index)[WIDE:].astype(np.float32)
                if odd and site == SITES[2]:
                    values[30_000] = np.nan
                    driver.arena[8 * WIDE :] = values.tobytes()
                driver.engine.open(tag, CHAIN, [], True)
                driver.engine.contribute(tag, 1.0, True)
            await rig.until(*(lambda one=one, tag=tag: tag in one.finished for one in rig.drivers.values()))
            found = [driver.engine.findings(number) for driver in rig.drivers.values()]
            assert [not one.finite for one in found] == [odd] * 4
            if odd:
                assert SITES[2] in {site for one in found for site in one.culprits}
        for driver in rig.drivers.values():
            assert np.isfinite(driver.result(3)).all()


async def test_a_fetched_result_is_the_bytes_that_were_sent() -> None:
    async with running("int8") as rig:
        await one_round(rig, 1, dict.fromkeys(FOUR, 1.0))
        first, other = rig.drivers[SITES[0]], rig.drivers[SITES[2]]
        (digest,) = {told[0] for told in first.finished.values()}
        wanted = bytes(first.engine.result(1) or b"")
        first.engine.drop_results(5, after_round=0)
        assert first.engine.result(1) is None
        sent = 0

        def count(_source: SiteId, to: SiteId, _header: bytes, payload: bytes) -> bytes:
            nonlocal sent
            sent += len(payload) if to == first.site else 0
            return payload

        rig.network.spoil = count
        rig.network.connect(first.site, other.site)
        first.engine.fetch_result(1, digest, [other.site])
        await rig.until(lambda: first.fetched == {1: digest})
        assert bytes(first.engine.result(1) or b"") == wanted
        assert sent < 0.3 * 4 * 60_001 + 8 * WIDE
