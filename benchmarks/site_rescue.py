"""All holders of a stage are lost in one institution: which bytes come over the network, and whether others wait.

Three institutions on this machine, real daemons and workers: two of one process each, and one of two processes, each of
which holds a stage of a model of wide layers (AdamW: 12 bytes a parameter). One of those two kills itself in the
backward pass of a round, so that nobody at its site holds its layers any more. Bytes: payload of frames with state that
the site's daemon received from the loss on until its workers had taken the state over, and the hashes that it told the
others for the comparison, over the bytes of the lost layers. Rounds: how long those of the two others took meanwhile,
the longest over the median of those before. States: digests of all layers after every round, at all three. As a
program: one worker.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.integration import site_training
from tests.rigs.counters import counted
from tests.rigs.site import Site, cluster_of
from tests.rigs.worker_group import Ran, launch, train

from benchmarks import rescue_worker
from benchmarks.measure import Figures
from chaos_protocols.wire.bulk import CELL_BYTES, HASH_BYTES
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened
from chaosd.worker_group.processes import Process

WORKER = Path(rescue_worker.__file__)
WIDTH, WIDTH_SHORT = 3072, 2048
"""Of four of the six layers: 9.4 million parameters each, 4.2 million."""
STEPS = 40
LOST_AT = 4
PACE_S = 0.5
"""Between two rounds until the state is whole again, so that there are rounds meanwhile."""
LIMIT_S = 240.0
OUTSIDE = ("one", "two")
SEEDS = {"one": 7, "two": 11, "many": 13}

Rounds = dict[int, tuple[float, list[str]]]
"""When a site had done each round, on the monotonic clock, and the digests of all layers then."""


def bytes_of_layers(width: int, layers: Sequence[int]) -> int:
    """Of their state under AdamW: parameters, two moments and a step for each, and buffers."""
    site_training.WIDTH = width
    model = list(site_training.make_model())
    found = 0
    for index in layers:
        found += sum(12 * each.numel() + 4 for each in model[index].parameters())
        found += sum(each.numel() * each.element_size() for each in model[index].state_dict(keep_vars=True).values()
                     if not each.requires_grad)  # fmt: skip
    return found


class Rescue:
    """What the controller of the struck site tells, and what its daemon had received by then."""

    def __init__(self, site: Site, fast: Path) -> None:
        self.lost_s = self.loaded_s = 0.0
        self.received_bytes = 0.0
        self.state_bytes = 0
        self._site, self._fast = site, fast

    def watch(self, _: Controller, entry: Happened) -> None:
        if entry.kind == "state-lost":
            self.lost_s, self.received_bytes = entry.at_s, -self._received()
        elif entry.kind == "state-loaded" and self.lost_s and not self.loaded_s:
            self.loaded_s = entry.at_s
            self.received_bytes += self._received()
            told = "\n".join(each.reason for each in self._site.events("transfer"))
            self.state_bytes = max(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) bytes of round", told))
            self._fast.touch()

    def _received(self) -> float:
        return counted(self._site.client.metrics(), "chaosd_bulk_bytes_total", direction="received", kind="state")


def _arguments(name: str, width: int, fast: Path, told: Path | None) -> dict[str, str]:
    given = {"steps": STEPS, "seed": SEEDS[name], "pace_s": PACE_S, "fast": str(fast), "width": width}
    return {"OMP_NUM_THREADS": "1", "TRAINING": json.dumps({**given, "told": str(told or "")})}


def _alone(site: Site, width: int, fast: Path) -> Process:
    """An institution of one process."""
    site.start()
    environment = {
        **_arguments(site.name, width, fast, site.folder / "rounds"),
        "CHAOS_SOCKET": str(site.worker_socket),
    }
    return launch(["python", "-u", str(WORKER)], environment, {})


def _rounds(site: Site) -> Rounds:
    lines = (site.folder / "rounds").read_text(encoding="utf-8").splitlines()
    return {step: (at_s, digests) for step, at_s, digests in map(json.loads, lines)}


async def _play(folder: Path, width: int) -> tuple[Ran, Rescue, list[Rounds]]:
    fast = folder / "fast"
    with cluster_of(folder, dict.fromkeys((*OUTSIDE, "many"), ""), min_sites=3) as cluster:
        *outside, many = cluster.sites
        processes = [await asyncio.to_thread(_alone, site, width, fast) for site in outside]
        await asyncio.to_thread(many.start)
        rescue = Rescue(many, fast)
        ran = await train(
            many.folder,
            dp=1,
            pp=2,
            restarts=1,
            faults=f"1:{LOST_AT}:backward",
            script=WORKER,
            environment=_arguments("many", width, fast, None),
            daemon=many.worker_socket,
            watch=rescue.watch,
        )
        async with asyncio.timeout(LIMIT_S):
            for process in processes:
                await asyncio.to_thread(process.wait)
        return ran, rescue, [_rounds(site) for site in outside]


def _lost_layers(ran: Ran) -> range:
    """As the planner names them."""
    (found,) = (str(each.reason) for each in ran.of("plan") if each.fields["policy"] == "rescue")
    first, last = re.findall(r"layers (\d+) to (\d+) have no holder", found)[0]
    return range(int(first), int(last) + 1)


def run(*, short: bool, seed: int) -> Figures:
    """`seed`: not drawn from."""
    width = WIDTH_SHORT if short else WIDTH
    with tempfile.TemporaryDirectory() as folder:
        ran, rescue, others = asyncio.run(_play(Path(folder), width))
    if ran.failed or not rescue.loaded_s:
        raise RuntimeError(f"the training did not come to its end: {ran.failed}; {ran.happened[-5:]}")
    lost = bytes_of_layers(width, _lost_layers(ran))
    came = int(rescue.received_bytes) + HASH_BYTES * -(-rescue.state_bytes // CELL_BYTES)
    before, meanwhile = _gaps(others, rescue)
    steps: list[Any] = [each.fields for each in ran.of("step")]
    group = {int(fields["step"]): list(fields["digests"]) for fields in steps}
    common = others[0].keys() & others[1].keys()
    return {
        "lost_bytes": lost,
        "state_bytes": rescue.state_bytes,
        "received_bytes": came,
        "over_lost_layers": came / lost,
        "seconds": rescue.loaded_s - rescue.lost_s,
        "rounds_meanwhile": len(meanwhile),
        "longest_round_over_usual": max(meanwhile, default=math.inf) / statistics.median(before),
        "rounds_compared": len(common & group.keys()),
        "equal": all(others[0][at][1] == others[1][at][1] == group.get(at, others[0][at][1]) for at in common),
    }


def _gaps(others: Sequence[Rounds], rescue: Rescue) -> tuple[list[float], list[float]]:
    """Seconds of the rounds of the other institutions: before the loss; and of those that ended in the time of the
    rescue, or were under way at its end."""
    before, meanwhile = [], []
    for rounds in others:
        for begun_s, ended_s in itertools.pairwise(at_s for _, (at_s, _) in sorted(rounds.items())):
            if ended_s < rescue.lost_s:
                before.append(ended_s - begun_s)
            elif begun_s < rescue.loaded_s:
                meanwhile.append(ended_s - begun_s)
    return before, meanwhile
