"""The long courses of sites of several workers with local steps, which stages and replicas share: `spawn` starts the
ordinary script of a site, `group` the workers of another one; `rounds`, `pace_s` a step of the ordinary one until the
workers are where they are to be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.integration.site_training import LAYERS
from tests.integration.test_institutions import ended, sites
from tests.rigs.site import wait_for
from tests.rigs.worker_group import Ran

from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

Told = dict[int, dict[int, str]]
"""Digests of the layers' parameters after each round."""


def told(folder: Path) -> Told:
    """What all workers have said; two that hold one layer must have said the same."""
    found: Told = {}
    path = folder / "digests"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        round, layers = json.loads(line)
        for layer, digest in layers:
            assert found.setdefault(round, {}).setdefault(layer, digest) == digest, (round, layer)
    return found


async def train_together(
    folder: Path,
    spawn: Callable[..., Any],
    group: Callable[..., Awaitable[Ran]],
    *,
    ordinary: dict[str, Any],
    faults: str = "",
    **more: Any,
) -> tuple[Ran, Told]:
    """`ordinary`: what the script is told. After each round both sites have the same, whichever worker died."""
    async with sites(folder, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, **ordinary)
        ran = await group(many, faults=faults, **more)
        await ended(process)
    assert ran.failed == "" and len(ran.struck) == bool(faults) and not ran.of("state-differed"), ran.happened
    assert told(one.folder) == told(many.folder)
    return ran, told(one.folder)


async def lose_all_holders(
    folder: Path,
    spawn: Callable[..., Any],
    group: Callable[..., Awaitable[Ran]],
    *,
    rounds: int,
    pace_s: float,
    **lost: Any,
) -> None:
    """The phase begins anew from the anchor, which the other site has. `lost`: who, and how the group is started."""

    def watch(_: Controller, entry: Happened) -> None:
        """The other site must not be through before this one is back; what it loads as it joins is round 0."""
        if entry.kind == "state-loaded" and int(str(entry.fields["step"])) > 0:
            (folder / "fast").touch()

    async with sites(folder, ["one", "many"], min_sites=2) as cluster:
        one, many = cluster.sites
        process = await asyncio.to_thread(spawn, one, rounds=rounds, pace_s=pace_s, fast=str(folder / "fast"))
        ran = await group(many, restarts=1, training={"rounds": rounds}, watch=watch, **lost)
        await ended(process)
    assert ran.failed == "" and len(ran.of("state-lost")) == 1 and not ran.of("state-differed"), ran.happened
    here, there = told(many.folder), told(one.folder)
    whole = {each: layers for each, layers in here.items() if len(layers) == LAYERS}
    assert rounds in whole and whole == {each: there[each] for each in whole}


async def join_within_a_phase(
    folder: Path, spawn: Callable[..., Any], group: Callable[..., Awaitable[Ran]], *, rounds: int, pace_s: float
) -> None:
    """The workers join, and a third site gets its state with them there."""
    async with sites(folder, ["one", "many", "late"], min_sites=1) as cluster:
        one, many, late = cluster.sites
        paced = {"rounds": rounds, "pace_s": pace_s, "fast": str(folder / "fast")}
        process = await asyncio.to_thread(spawn, one, **paced)
        await asyncio.to_thread(wait_for, lambda: told(one.folder), "the first round")
        workers = asyncio.ensure_future(group(many, training={"rounds": rounds}))
        await asyncio.to_thread(wait_for, lambda: told(many.folder), "a round of the workers")
        third = await asyncio.to_thread(spawn, late, seed=13, **paced)
        await asyncio.to_thread(wait_for, lambda: told(late.folder), "the third trains")
        (folder / "fast").touch()
        await ended(process)
        await ended(third)
        ran = await workers
    assert ran.failed == "" and not ran.of("state-differed"), ran.happened
    for other in (many, late):
        found = told(other.folder)
        assert rounds in found and all(found[each] == told(one.folder)[each] for each in found)
