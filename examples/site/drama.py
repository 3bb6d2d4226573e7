"""Two institutions train one model while the workers of one of them die: what `demo` shows, played by real processes.

Cleveland has eight workers, two pipelines of four stages, and a spare; Hungary is one process. Each has a daemon, and
every step is a round of their run. In Cleveland one worker is killed in its backward pass, one hangs, new processes
come, and then all workers of a stage are killed at once, so that its layers come back from Hungary.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.site_recovery import SCRIPT, Strike, digests_in, follow, listed, until_it_does
from prometheus_client.parser import text_string_to_metric_families

from chaos_lab.children import free_port
from chaos_lab.running import RunningSite
from chaos_planner.pipelines.plans.layout import Policy
from chaos_protocols.wire.bulk import CELL_BYTES, HASH_BYTES
from chaos_protocols.worker_group.suspicion import Work
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.processes import Launch, launch
from chaosd.worker_group.timed_steps import TimedSteps
from chaosd.worker_group.timeline_file import TimelineFile

PIPELINES, STAGES, SPARES, RESTARTS = 2, 4, 1, 12
STEPS_BETWEEN = 6
"""Undisturbed, before each blow and at the end."""
STEPS = 1_000_000
"""More than there is time for: the end comes when all has been shown."""
LIMIT_S = 240.0
DAEMON_LIMIT_S = 60.0
PACE_S = 0.05
"""Hungary rests so long after a step, or it would make hundreds while Cleveland is without a stage."""
POLICIES = frozenset({Policy.REROUTE, Policy.RESTART})
"""Not other pipelines: for so small a model the planner would soon give every worker all of it, and no stage could be
lost."""
BATCHES = {"cleveland": 16, "hungary": 4}
SEEDS = {"cleveland": 1, "hungary": 2}
MODEL = ("--width", "96")


@dataclass(slots=True)
class Blow:
    """What struck Cleveland, and how that went. `workers`: struck at once."""

    what: str
    strike: Strike
    workers: tuple[int, ...]
    layers: range


@dataclass(slots=True)
class Rescue:
    """What the lost stage cost: bytes of state that came from the other institution, with the hashes that were told for
    the comparison; the lost layers' own bytes."""

    lost_s: float = 0.0
    whole_s: float = 0.0
    came_bytes: float = 0.0
    lost_bytes: int = 0
    state_bytes: int = 0


@dataclass(slots=True)
class Shown:
    """What came of it. `many`, `one`: step to the digests of all layers, at Cleveland and at Hungary."""

    happened: list[Happened] = field(default_factory=list)
    blows: list[Blow] = field(default_factory=list)
    rescue: Rescue = field(default_factory=Rescue)
    many: dict[int, list[str]] = field(default_factory=dict)
    one: dict[int, list[str]] = field(default_factory=dict)
    undisturbed: dict[int, list[str]] = field(default_factory=dict)
    """Of the same training with one process at each institution and nothing lost, up to the loss of the stage."""

    @property
    def common(self) -> list[int]:
        """Steps that both institutions have made with one another."""
        return sorted(self.many.keys() & self.one.keys())

    @property
    def lost_at(self) -> int:
        """The first step that Cleveland had no part in because a stage was gone."""
        return self.blows[-1].strike.steps_before + 1

    def steps_s(self, generation: int) -> list[float]:
        """How long the steps of a plan took, one after the other; without what was applied only, while a stage was
        away."""
        away_s = (self.rescue.lost_s, self.rescue.whole_s)
        steps = [each for each in self.of("step") if each.fields["generation"] == generation]
        ends_s = [each.at_s for each in steps if not away_s[0] <= each.at_s <= away_s[1]]
        return [b - a for a, b in itertools.pairwise(ends_s)]

    def of(self, kind: str) -> list[Happened]:
        """Entries of this kind."""
        return [each for each in self.happened if each.kind == kind]


class Institutions:
    """Both, with their daemons, in a folder; use as a context: nothing is left of them. `made`: what
    starts their processes."""

    def __init__(self, folder: Path, made: type[RunningSite] = RunningSite) -> None:
        self.many, self.one = (
            made(name, folder / name, f"127.0.0.1:{free_port()}") for name in ("cleveland", "hungary")
        )
        both = (self.many, self.one)
        for number, site in enumerate(both):
            site.configure("demo", bootstrap=number == 0, trust=both, peers=both[:number], start_sites=2)

    async def __aenter__(self) -> Institutions:
        try:
            for site in (self.many, self.one):
                site.spawn_daemon(site.daemon_command())
            for site in (self.many, self.one):
                await asyncio.to_thread(site.await_daemon, DAEMON_LIMIT_S)
        except BaseException:
            self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Nothing of them runs any more."""
        for site in (self.many, self.one):
            site.kill()

    def train(self, site: RunningSite, steps: int, pace_s: float = 0.0) -> Path:
        """An ordinary script of one process; the file of its digests."""
        digests = site.folder / "digests"
        words = arguments(site.name, steps)
        command = [sys.executable, str(SCRIPT), *words, "--digests", str(digests), "--pace", str(pace_s)]
        site.spawn_worker(command, variables={"CHAOS_SOCKET": str(site.worker_socket)})
        return digests


def arguments(name: str, steps: int) -> list[str]:
    """Of an institution's script."""
    batch = ["--global-batch", str(BATCHES[name]), "--micro-batch", "2", "--seed", str(SEEDS[name])]
    return ["--steps", str(steps), *batch, *MODEL]


class Drama:
    """One showing. `tell`: takes a line for people; `pictures`: of the losses, and of the rescue."""

    def __init__(self, tell: Callable[[str], None], pictures: Sequence[Path], start: Launch | None = None) -> None:
        self._tell, self._pictures = tell, pictures
        self._launch = start or functools.partial(launch, stdout=subprocess.DEVNULL)
        self.shown = Shown()
        self._timed = TimedSteps()
        self._planner = SitePlanner(workers=PIPELINES * STAGES, pipelines=PIPELINES, stages=STAGES, policies=POLICIES)
        self._changed = asyncio.Event()
        self._begun_s = time.monotonic()

    async def play(self, sites: Institutions) -> None:
        """From the first step to the last; raises `TimeoutError`."""
        self._sites = sites
        one = sites.train(sites.one, STEPS, PACE_S)
        self._controller = Controller(
            command=[sys.executable, "-u", str(SCRIPT), *arguments(sites.many.name, STEPS)],
            workers=PIPELINES * STAGES,
            planner=self._planner,
            spares=SPARES,
            restarts=RESTARTS,
            audit=True,
            timed=self._timed,
            launch=self._launch,
            environment={"OMP_NUM_THREADS": "1"},
            daemon=sites.many.worker_socket,
            happened=self._happened,
        )
        acts = asyncio.create_task(self._acts())
        acts.add_done_callback(lambda _: self._controller.end("all has been shown"))
        try:
            async with asyncio.timeout(LIMIT_S):
                failed = await self._controller.run()
        finally:
            acts.cancel()
            (acted,) = await asyncio.gather(acts, return_exceptions=True)
        if isinstance(acted, BaseException):
            raise RuntimeError(f"{failed}: {acted!r}") from acted
        self.shown.one = digests_in(one)
        self.shown.many = {
            int(str(each.fields["step"])): [str(digest) for digest in listed(each.fields["digests"])]
            for each in self.shown.of("step")
        }

    async def _acts(self) -> None:
        await self._steps(0.0)
        await self._strike("killed in its backward pass", Work.BACKWARD, signal.SIGKILL)
        await self._strike("hangs", Work.FORWARD, signal.SIGSTOP)
        await self._all_back()
        await self._draw(self._pictures[0])
        await self._lose_a_stage()
        await self._draw(self._pictures[1])

    async def _strike(self, what: str, work: Work, number: signal.Signals) -> None:
        """One that trains; until it is recovered from."""
        plan = self._timed.plan
        assert plan is not None
        worker = sorted(plan.layers)[-2 if work is Work.BACKWARD else 1]
        await asyncio.to_thread(until_it_does, self._controller, worker, work)
        await self._hit(what, [worker], work, number)

    async def _lose_a_stage(self) -> None:
        """All that hold the layers of one stage."""
        plan = self._timed.plan
        assert plan is not None
        last = max(held.stop for held in plan.layers.values()) - 1
        victims = [worker for worker, held in plan.layers.items() if last in held]
        elsewhere = {layer for worker, held in plan.layers.items() if worker not in victims for layer in held}
        lost = [layer for layer in range(last + 1) if layer not in elsewhere]
        hello = plan.hello.layers
        rescue = self.shown.rescue
        rescue.state_bytes = sum(each.parameter_bytes + each.optimizer_bytes for each in hello)
        rescue.came_bytes = -self._state_received()
        await asyncio.to_thread(until_it_does, self._controller, victims[0], Work.BACKWARD)
        rescue.lost_bytes = sum(hello[layer].parameter_bytes + hello[layer].optimizer_bytes for layer in lost)
        await self._hit("all replicas of a stage are killed", victims, Work.BACKWARD, signal.SIGKILL)

    async def _hit(self, what: str, workers: list[int], work: Work, number: signal.Signals) -> None:
        plan = self._timed.plan
        assert plan is not None
        steps = [int(str(each.fields["step"])) for each in self.shown.of("step")]
        strike = Strike(worker=workers[0], work=work, number=number, steps_before=max(steps))
        self.shown.blows.append(Blow(what, strike, tuple(workers), plan.layers[workers[0]]))
        pids = [self._controller.pid(worker) for worker in workers]
        strike.sent_s = time.monotonic()
        for pid in pids:
            os.kill(pid, number)
        names = " and ".join(str(worker) for worker in workers)
        self._timed.struck(strike.sent_s, f"worker {names}: {what}")
        self._say(f"worker {names}: {what}")
        await self._until(lambda: strike.stepped_s > 0)
        await self._steps(strike.stepped_s)

    async def _steps(self, since_s: float) -> None:
        """Some that nothing disturbs."""
        await self._until(lambda: sum(each.at_s > since_s for each in self.shown.of("step")) >= STEPS_BETWEEN)

    async def _all_back(self) -> None:
        """All places are taken again, and a spare waits."""
        await self._until(self._are_all_back)
        await self._steps(time.monotonic())

    def _are_all_back(self) -> bool:
        plan = self._timed.plan
        came = {each.fields["worker"] for each in self.shown.of("worker-came")}
        here = came - {each.fields["worker"] for each in self.shown.of("worker-lost")}
        return plan is not None and len(plan.layers) == PIPELINES * STAGES and len(here) > PIPELINES * STAGES

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _draw(self, path: Path) -> None:
        drawing = TimelineFile(path, self._timed, self._planner, "train.py")
        await drawing.close()
        self._say(f"picture: {drawing.outcome}")

    # ---- what happens

    def _happened(self, entry: Happened) -> None:
        self.shown.happened.append(entry)
        if self.shown.blows:
            follow(self.shown.blows[-1].strike, entry)
        rescue = self.shown.rescue
        match entry.kind:
            case "state-lost" if not rescue.lost_s:
                rescue.lost_s = entry.at_s
            case "state-loaded" if rescue.lost_s and not rescue.whole_s:
                rescue.whole_s = entry.at_s
                hashes = HASH_BYTES * -(-rescue.state_bytes // CELL_BYTES)
                rescue.came_bytes += self._state_received() + hashes
                self._say(f"Cleveland's state is whole again ({entry.reason})")
        if entry.kind in ("plan", "recovered", "state-lost", "run-joined", "no-plan"):
            shape = f"{entry.fields['policy']}: " if entry.kind == "plan" else ""
            self._say(f"{entry.kind}: {shape}{entry.reason}")
        self._changed.set()

    def _state_received(self) -> float:
        """Bytes of state that Cleveland's daemon has received so far."""
        wanted = {"direction": "received", "kind": "state"}
        families = text_string_to_metric_families(self._sites.many.client.metrics())
        samples = [sample for family in families for sample in family.samples]
        return sum(
            s.value for s in samples if s.name == "chaosd_bulk_bytes_total" and wanted.items() <= s.labels.items()
        )

    def _say(self, text: str) -> None:
        self._tell(f"{time.monotonic() - self._begun_s:6.1f} s  {text}")


async def undisturbed(sites: Institutions, steps: int) -> dict[int, list[str]]:
    """The same training, one process at each institution: digests at Cleveland."""
    many = sites.train(sites.many, steps)
    sites.train(sites.one, steps)
    async with asyncio.timeout(LIMIT_S):
        while len(found := digests_in(many)) < steps:
            if not sites.many.worker_runs() and len(digests_in(many)) < steps:
                raise RuntimeError(f"the undisturbed training ended early\n{sites.many.tail()}")
            await asyncio.sleep(0.1)
    return found


def median_ms(seconds: Sequence[float]) -> str:
    """For a table."""
    return f"{1e3 * statistics.median(seconds):.0f} ms" if seconds else "-"
