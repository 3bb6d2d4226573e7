"""What the scripts of a site's workers tell all sites, and when they end: the same at every worker, whoever dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.integration import noted_training
from tests.integration.site_training import GLOBAL_BATCH, MICRO_BATCH
from tests.integration.test_institutions import ended, sites
from tests.rigs.site import Site
from tests.rigs.warm import Forked
from tests.rigs.worker_group import Ran, launch, train

from chaos_planner.pipelines.plans.layout import Policy
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = Path(noted_training.__file__)
SHAPES: Mapping[str, dict[str, int]] = {"stages": {"dp": 2, "pp": 2}, "replicas": {"dp": 3, "pp": 1}}
WANTS = 4
"""The round from which on a script wants to end; all hear that with the next one."""

Heard = dict[int, dict[int, list[Any]]]
"""By process and round: whether all end, and the averages of what was reported."""


def heard(path: Path) -> Heard:
    found: Heard = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        process, round, *rest = json.loads(line)
        assert round not in found.setdefault(process, {}), f"round {round} was heard twice"
        found[process][round] = rest
    return found


async def noted(tmp_path: Path, kind: str, *, given: Mapping[str, Any] | None = None, **more: Any) -> tuple[Ran, Heard]:
    """A site of several workers by themselves. After a loss all that live have layers: whether other pipelines, which
    may leave one without, seem faster than the work dealt anew depends on what a step took."""
    told = tmp_path / "told"
    answers = {"policies": [Policy.RESTART, Policy.REROUTE]} if kind == "stages" else {}
    training = {"kind": kind, "told": str(told), "wants": WANTS, **(given or {})}
    environment = {"TRAINING": json.dumps(training)}
    ran = await train(tmp_path, script=SCRIPT, environment=environment, **{**SHAPES[kind], **answers, **more})
    assert ran.failed == "", ran.happened
    return ran, heard(told)


def losses(ran: Ran) -> dict[int, float]:
    return {int(str(each.fields["step"])): float(str(each.fields["loss"])) for each in ran.of("step")}


def check(ran: Ran, told: Heard, kind: str) -> None:
    """All heard the same: the loss of each step once, and the end after the same one."""
    assert max(losses(ran)) in (WANTS, WANTS + 1), "a last answer may die with its worker"
    first = next(iter(told.values()))
    for process, rounds in told.items():
        for round, (stops, metrics, epoch, *_) in rounds.items():
            assert (stops, epoch) == (round == WANTS + 1, round // 3), (process, round)
            wanted = losses(ran).get(round if kind == "replicas" else round - 1)
            if wanted is not None:
                assert metrics == {"loss": pytest.approx(wanted, rel=1e-12)}, (process, round)
            assert metrics == first.get(round, rounds[round])[1], (process, round)


def seldom(faults: str) -> object:
    return pytest.param(faults, marks=pytest.mark.long)


@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_all_workers_hear_the_same_averages_and_end_after_the_same_step(tmp_path: Path, kind: str) -> None:
    ran, told = await noted(tmp_path, kind)
    check(ran, told, kind)
    shape = SHAPES[kind]
    assert [sorted(rounds) for rounds in told.values()] == [list(range(1, WANTS + 2))] * (shape["dp"] * shape["pp"])


FAULTS = [("1:2:backward", 1), ("1:2:reduced", 1), ("0:2:update", 1), ("1:4:reduced", 1), ("1:4:update", 1)]


@pytest.mark.parametrize(("faults", "killed"), FAULTS, ids=[fault for fault, _ in FAULTS])
@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_a_worker_that_is_killed_changes_nothing_of_what_the_others_hear(
    tmp_path: Path, kind: str, faults: str, killed: int
) -> None:
    ran, told = await noted(tmp_path, kind, faults=faults)
    assert len(ran.struck) == killed
    check(ran, told, kind)
    last = sum(WANTS + 1 in rounds for rounds in told.values())
    shape = SHAPES[kind]
    assert last == shape["dp"] * shape["pp"] - killed, "all that live have heard the end"


@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_a_spare_that_was_never_needed_ends_as_the_others_do(tmp_path: Path, kind: str) -> None:
    """Its last report has no loss, which its script says to nobody: that was refused as no finite number."""
    ran, told = await noted(tmp_path, kind, spares=1)
    shape = SHAPES[kind]
    assert ran.failed_after == "" and sum(WANTS + 1 in rounds for rounds in told.values()) == shape["dp"] * shape["pp"]


def ordinary(site: Site, kind: str = "ordinary", **given: Any) -> Forked:
    """A site of one process, beside its daemon."""
    site.start()
    training = {"kind": kind, "told": str(site.folder / "told"), "standalone": False, "wants": WANTS, **given}
    environment = {"CHAOS_SOCKET": str(site.worker_socket), "OMP_NUM_THREADS": "1", "TRAINING": json.dumps(training)}
    return launch(["python", str(SCRIPT)], environment, {})


async def group(site: Site, kind: str, *, given: Mapping[str, Any] | None = None, **more: Any) -> tuple[Ran, Heard]:
    """A site of several workers, beside its daemon."""
    await asyncio.to_thread(site.start)
    return await noted(
        site.folder, kind, given={"standalone": False, "steps": 40, **(given or {})}, daemon=site.worker_socket, **more
    )


@pytest.mark.parametrize("faults", [*map(seldom, ("", "1:2:backward", "1:3:reduced")), "0:2:update"])
@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_all_sites_hear_the_same_and_end_in_the_same_round(tmp_path: Path, kind: str, faults: str) -> None:
    """The site of several workers wants to end two rounds later than the other one."""
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, seed=11)
        ran, told = await group(many, kind, given={"wants": WANTS + 2}, faults=faults)
        await ended(process)
    assert len(ran.struck) == bool(faults)
    check_both(ran, told, kind, one, SHAPES[kind]["dp"] * SHAPES[kind]["pp"] - len(ran.struck))


def check_both(ran: Ran, told: Heard, kind: str, one: Site, to_the_end: int, *, at_least: int | None = None) -> None:
    """The site of one process wants to end with the round `WANTS`, the other one two later: all heard the same, and so
    many workers heard of the last round."""
    last, (other,) = WANTS + 3, heard(one.folder / "told").values()
    assert max(other) == last
    least = to_the_end if at_least is None else at_least
    assert least <= sum(last in rounds for rounds in told.values()) <= to_the_end
    own = losses(ran)
    for process_told in (other, *told.values()):
        for round, entry in process_told.items():
            assert entry[0] == (round == last) and entry[:4] == other[round][:4], round
            loss = own.get(round if kind == "replicas" else round - 1)
            if loss is not None:
                assert entry[1] == {"loss": pytest.approx((loss + 11) / 2, rel=1e-12)}, "both have one weight"


@pytest.mark.parametrize("round", [4, WANTS + 3], ids=["amid", "last"])
@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_who_waits_for_a_result_when_a_worker_dies_hears_of_its_round_as_ever(
    tmp_path: Path, kind: str, round: int
) -> None:
    """The result comes when the next plan is in force, and its workers hold: their scripts were told nothing of that
    round, so that no loss was reported with the next one, and after the last one they trained on by themselves."""
    file = tmp_path / "a plan without it is in force"

    def watch(controller: Controller, entry: Happened) -> None:
        if entry.kind == "training" and entry.fields["generation"] == 2:
            file.touch()

    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, seed=11, hold=(round, str(file)))
        alike = {} if kind == "stages" else {"dp": 2, "spares": 1}  # each replica gets one micro-batch of a step
        given = {"wants": WANTS + 2, "micro_batch": GLOBAL_BATCH // 2 if alike else MICRO_BATCH}
        ran, told = await group(many, kind, given=given, faults=f"1:{round - 1}:reduced", watch=watch, **alike)
        await ended(process)
    assert file.exists() and len(ran.struck) == 1
    living = 3 if kind == "stages" else 2
    came_late = kind == "replicas" and round > WANTS  # the spare, unless the step is done again with it
    check_both(ran, told, kind, one, living, at_least=living - came_late)
    for rounds in told.values():
        assert list(rounds) == list(range(min(rounds), max(rounds) + 1)), "no round is left out"


@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_workers_that_join_hear_nothing_of_rounds_that_were_done_without_them(tmp_path: Path, kind: str) -> None:
    """They apply the results that came while they got the state, and have no loss of those steps to report."""
    last, file, came = 150, tmp_path / "the workers are there", [0]

    def watch(controller: Controller, entry: Happened) -> None:
        came[0] += entry.kind == "worker-came"
        if came[0] == SHAPES[kind]["dp"] * SHAPES[kind]["pp"]:
            file.touch()

    async with sites(tmp_path, ["one", "many"], min_sites=1) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, seed=11, wants=last, hold=(3, str(file)))
        ran, told = await group(many, kind, given={"steps": 2 * last}, watch=watch)
        await ended(process)
    (other,) = heard(one.folder / "told").values()
    assert not ran.struck and max(other) == last + 1
    for rounds in told.values():
        assert min(rounds) > 3 and list(rounds) == list(range(min(rounds), last + 2))
        assert all(entry[:4] == other[round][:4] for round, entry in rounds.items() if round > min(rounds))


@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_a_site_of_one_process_hears_the_same_as_one_of_several(tmp_path: Path, kind: str) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, kind, seed=11, rule="linear")
        _, told = await group(many, "replicas", given={"rule": "linear"})
        await ended(process)
    (other,) = heard(one.folder / "told").values()
    assert max(other) == WANTS + 1 and other[WANTS + 1][0] and other[WANTS][3] == 2.0
    whole = 5 if kind == "replicas" else 4
    for rounds in told.values():
        assert {round: entry[:whole] for round, entry in rounds.items()} == {
            round: entry[:whole] for round, entry in other.items()
        }


@pytest.mark.parametrize("faults", [*map(seldom, ("", "1:2:reduced")), "0:2:update"])
@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_learning_rates_of_workers_follow_the_sites_as_those_of_a_script_of_one_process(
    tmp_path: Path, kind: str, faults: str
) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, seed=11, rule="linear")
        given = {"rule": "linear", "whole": True}
        ran, told = await group(many, kind, given=given, faults=faults, **SHAPES["replicas"])
        await ended(process)
    (other,) = heard(one.folder / "told").values()
    assert [other[round][3] for round in sorted(other)] == [1.0] + [2.0] * WANTS, "two sites, from the second round on"
    assert len(ran.struck) == bool(faults)
    for rounds in told.values():
        for round, entry in rounds.items():
            assert entry == other[round], "factor, averages and parameters, to the last bit"


@pytest.mark.long
@pytest.mark.parametrize("more", [{"spares": 1}, {"policies": [Policy.DYNAMIC]}], ids=("spare", "pipelines"))
async def test_a_worker_of_stages_that_comes_later_has_the_factor_of_the_others(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """With pipelines of two stages, where layers go on to who had others."""
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, seed=11, rule="linear")
        ran, told = await group(many, "stages", given={"rule": "linear"}, faults="1:2:backward", **more)
        await ended(process)
    (other,) = heard(one.folder / "told").values()
    assert len(ran.struck) == 1 and not ran.of("state-differed"), ran.happened
    for rounds in told.values():
        assert all(entry[:4] == other[round][:4] for round, entry in rounds.items())


@pytest.mark.long
async def test_processes_that_share_layers_hear_the_same_and_follow_the_same_rule(tmp_path: Path) -> None:
    async with sites(tmp_path, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(ordinary, one, seed=11, rule="linear")
        given = {"rule": "linear", "grouped": True}
        ran, told = await group(many, "stages", given=given, dp=2, pp=1, group_size=2, faults="1.1:2:backward")
        await ended(process)
    (other,) = heard(one.folder / "told").values()
    assert len(ran.struck) == 1 and not ran.of("state-differed") and len(told) == 4, ran.happened
    for rounds in told.values():
        assert all(entry[:4] == other[round][:4] for round, entry in rounds.items())


@pytest.mark.parametrize("kind", ["stages", "replicas"])
async def test_by_themselves_workers_have_the_factor_of_their_own_batch(tmp_path: Path, kind: str) -> None:
    _, told = await noted(tmp_path, kind, given={"rule": "sqrt", "reference": 4.0})
    assert all([rounds[round][3] for round in sorted(rounds)] == [1.0] + [2.0] * WANTS for rounds in told.values())
