"""Centred clipping with bytes (spec 19.5): what a site gives lies around the last result, whoever gives it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.integration.test_bulk_bounds import INNER, LEAF, PLAN, ROOT, WIDE, closed
from tests.rigs.reduce import SITES, SPEC, Driver, Rig

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import NORM_SLACK, UNBOUNDED, Bounds
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.worker import ContributionSpec

RADIUS = 2.0
BOUNDS = Bounds(clip_radius=RADIUS)
FAR = 500.0
"""Norm of what all sites agree on: many times the radius."""
LENGTH = WIDE + 60_001


def direction(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """Of length 1."""
    vector = np.random.default_rng(seed).standard_normal(LENGTH)
    return vector / float(np.linalg.norm(vector))


COMMON = FAR * direction(1)


def put(driver: Driver, vector: np.ndarray) -> None:  # type: ignore[type-arg]
    """Into its arena."""
    driver.arena[:] = vector[:WIDE].tobytes() + vector[WIDE:].astype(np.float32).tobytes()


def rig_of(bounds: dict[SiteId, Bounds], spec: ContributionSpec = SPEC) -> Rig:
    """Three sites in a chain."""
    rig = Rig(SITES[:3])
    rig.connect(PLAN)
    for site, driver in rig.drivers.items():
        driver.configure(spec)
        driver.engine.bounds = bounds.get(site, BOUNDS)
    return rig


def begin(rig: Rig, number: int, gives: dict[SiteId, np.ndarray], *, centred: bool) -> Tag:  # type: ignore[type-arg]
    """A round in which each site gives what is said, or what all have in common, with its own weight."""
    tag = Tag(epoch=1, round=number)
    for weight, (site, driver) in enumerate(rig.drivers.items(), start=1):
        driver.engine.centred = centred
        driver.engine.open(tag, PLAN, [], True)
        put(driver, gives.get(site, COMMON))
        driver.engine.contribute(tag, float(weight), True)
    return tag


async def whole(rig: Rig, tag: Tag) -> None:
    await rig.until(*(lambda one=driver: tag in one.finished for driver in rig.drivers.values()))
    assert len({driver.finished[tag][0] for driver in rig.drivers.values()}) == 1


async def agree(rig: Rig, number: int = 1) -> None:
    """A round without bounds, whose result is what all have in common."""
    for driver in rig.drivers.values():
        driver.engine.bounds = UNBOUNDED
    await whole(rig, begin(rig, number, {}, centred=False))


def bound_by(rig: Rig, bounds: dict[SiteId, Bounds] | None = None) -> None:
    for site, driver in rig.drivers.items():
        driver.engine.bounds = (bounds or {}).get(site, BOUNDS)


@pytest.mark.parametrize("encoding", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("away", [3.0, 1e6])
async def test_a_part_far_from_the_last_result_is_drawn_in_to_the_radius(away: float, encoding: str) -> None:
    rig = rig_of({}, msgspec.structs.replace(SPEC, encoding=encoding))
    await agree(rig)
    bound_by(rig)
    before = rig.drivers[ROOT].result(1)
    tag = begin(rig, 2, {LEAF: before + away * direction(2), INNER: before, ROOT: before}, centred=True)
    await whole(rig, tag)
    moved = rig.drivers[ROOT].result(2) - before
    if encoding == "fp32":
        share = 3.0 / 6.0  # of the weights
        np.testing.assert_allclose(moved, share * RADIUS * direction(2), atol=1e-4)
        told = [driver.engine.findings(2) for driver in rig.drivers.values()]
        assert all(one.bounded and one.clipped == 0.0 for one in told)
        assert [one.away for one in told] == [pytest.approx(0.0, abs=1e-3)] * 2 + [pytest.approx(away, rel=1e-3)]
    assert not any(driver.broken for driver in rig.drivers.values()), "who keeps to the radius is blamed for nothing"
    await rig.close()


async def test_without_a_last_result_parts_are_clipped_around_zero_and_the_results_come_nearer() -> None:
    rig = rig_of({})
    for number in range(1, 5):
        await whole(rig, begin(rig, number, {}, centred=number > 1))
        norm = float(np.linalg.norm(rig.drivers[LEAF].result(number)))
        assert norm == pytest.approx(RADIUS * number, rel=1e-4)
    await rig.close()


async def test_a_part_within_the_radius_counts_as_without_any() -> None:
    results = []
    for bounds in (BOUNDS, UNBOUNDED):
        rig = rig_of({})
        await agree(rig)
        bound_by(rig, dict.fromkeys(rig.drivers, bounds))
        await whole(rig, tag := begin(rig, 2, {LEAF: COMMON + direction(3)}, centred=True))
        results.append(rig.drivers[ROOT].finished[tag][0])
        await rig.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("encoding", ["fp32", "int8"])
@pytest.mark.parametrize("liar", [LEAF, INNER, ROOT])
async def test_a_daemon_that_keeps_to_no_radius_is_found_by_its_neighbour(liar: SiteId, encoding: str) -> None:
    """Its vector is as long as all others'; so nothing but the distance tells it from them."""
    rig = rig_of({}, msgspec.structs.replace(SPEC, encoding=encoding))
    await agree(rig)
    bound_by(rig, {liar: UNBOUNDED})
    tag = begin(rig, 2, {liar: -COMMON}, centred=True)
    finder = rig.drivers[{LEAF: INNER, INNER: ROOT, ROOT: INNER}[liar]]
    await rig.until(lambda: finder.broken)
    assert {site for site, _ in finder.broken} == {liar}
    assert "further from the last result than the run allows" in finder.broken[0][1]
    assert tag not in finder.finished
    await closed(rig)


async def test_a_site_that_lacks_the_last_result_gives_nothing_and_blames_nobody() -> None:
    rig = rig_of({})
    await agree(rig)
    bound_by(rig)
    rig.drivers[INNER].engine.drop_results(0, after_round=0)
    tag = begin(rig, 2, {LEAF: COMMON + 9.0 * direction(2)}, centred=True)
    await whole(rig, tag)
    assert [weight for _, weight in rig.drivers[ROOT].finished[tag][1]] == [1.0, 0.0, 3.0]
    assert not any(driver.broken for driver in rig.drivers.values())
    away = float(np.linalg.norm(rig.drivers[ROOT].result(2) - COMMON))
    assert away == pytest.approx(RADIUS * 3.0 / 4.0, rel=1e-3)
    await rig.close()


async def test_a_result_that_nobody_applied_is_no_centre() -> None:
    rig = rig_of({})
    for driver in rig.drivers.values():
        driver.engine.bounds = UNBOUNDED
    await whole(rig, begin(rig, 1, {ROOT: np.full(LENGTH, np.nan)}, centred=False))
    bound_by(rig)
    await whole(rig, begin(rig, 2, {}, centred=True))
    assert float(np.linalg.norm(rig.drivers[LEAF].result(2))) == pytest.approx(RADIUS, rel=1e-4)
    await rig.close()


async def test_a_result_that_is_longer_than_the_run_allows_is_no_centre_where_it_was_left_out() -> None:
    rig = rig_of({})
    for site, driver in rig.drivers.items():
        driver.engine.bounds = UNBOUNDED if site == ROOT else Bounds(norm_max=FAR)
    weight = 1 + list(rig.drivers).index(ROOT)
    share = (6 * 1.01 * NORM_SLACK - (6 - weight)) / weight
    await whole(rig, begin(rig, 1, {ROOT: share * COMMON}, centred=False))
    for site, driver in rig.drivers.items():
        assert driver.engine.findings(1).bounded is (site == ROOT)
        vectors = driver.engine.vectors
        assert vectors is not None
        centre = vectors._centre(BOUNDS, 1)
        assert centre is not None and (centre._vector is None) is (site != ROOT)
    await rig.close()


async def test_only_what_the_script_names_is_drawn_in_and_judged() -> None:
    spec = contribution_spec(WIDE, 60_001, bounded=[(0, 8 * 4_000), (8 * WIDE, SPEC.size_bytes)])
    rig = rig_of({}, spec)
    await agree(rig)
    bound_by(rig)
    counter = COMMON.copy()
    counter[4_500] = 1e12
    await whole(rig, begin(rig, 2, {LEAF: counter}, centred=True))
    found = rig.drivers[ROOT].engine.findings(2)
    assert found.bounded and found.clipped == 0.0
    assert rig.drivers[ROOT].result(2)[4_500] == pytest.approx(0.5e12)
    await rig.close()


async def test_where_parts_are_averaged_in_turn_the_last_result_is_of_another_part_and_no_centre() -> None:
    rig = rig_of({}, contribution_spec(WIDE, 60_001, parts=3))
    await agree(rig)
    bound_by(rig)
    await whole(rig, begin(rig, 2, {}, centred=True))
    assert float(np.linalg.norm(rig.drivers[LEAF].result(2))) == pytest.approx(RADIUS, rel=1e-4)
    assert not any(driver.broken for driver in rig.drivers.values())
    await rig.close()


async def test_a_norm_and_a_radius_hold_together() -> None:
    rig = rig_of({})
    await agree(rig)
    limit = 1.2 * FAR
    bound_by(rig, dict.fromkeys(rig.drivers, Bounds(norm_max=limit, clip_radius=RADIUS)))
    await whole(rig, begin(rig, 2, {LEAF: 1e20 * direction(2)}, centred=True))
    found = rig.drivers[LEAF].engine.findings(2)
    assert found.bounded and found.clipped == pytest.approx(1e20, rel=1e-3)
    assert found.away < NORM_SLACK * (limit + FAR)
    moved = float(np.linalg.norm(rig.drivers[ROOT].result(2) - COMMON))
    assert moved == pytest.approx(RADIUS / 2, rel=1e-2)
    await rig.close()


async def test_memory_is_given_back_after_every_round() -> None:
    rig = rig_of({})
    for number in range(1, 6):
        await whole(rig, begin(rig, number, {}, centred=number > 1))
    for driver in rig.drivers.values():
        assert driver.engine.vectors is not None
        kept = driver.engine.vectors.results_kept
        assert driver.engine.vectors.vectors.taken <= kept
    rig.drivers[ROOT].engine.centred = True
    rig.drivers[ROOT].engine.open(Tag(epoch=2, round=6), PLAN, [], True)
    vectors = rig.drivers[ROOT].engine.vectors
    assert vectors is not None
    held = vectors.vectors.taken
    rig.drivers[ROOT].engine.stop(Tag(epoch=2, round=6))
    assert vectors.vectors.taken == held - 1, "the centre is a result that is kept anyway"
    await rig.close()
