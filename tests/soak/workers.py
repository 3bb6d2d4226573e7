"""python -m tests.soak.workers [--seconds N] [--seed N]: the workers of one site under fire, for an hour.

Eight real workers under a real `chaosd run`, in four pipelines of two stages, and one that waits; whatever ends is
started anew and comes back. Drawn from the seed: which of them are killed, stopped for good, stopped for a moment, or
killed a second time while the others still recover; which is slow until the next one is; and when all of them stand
still for seconds, as on a machine that is loaded many times over. Ends with status 1, the seed and the folder of its
events unless every step told left the bits of the same training in one process, no step that was told was done again,
every strike was recovered from, the command ended after Ctrl+C as it says, and nothing is left of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import psutil

from chaos_lab.children import ended_by_signals
from chaosd.worker_group.board import BOARD_NAME, FOLDER_PREFIX, GroupView, WorkerView
from tests.integration import site_training
from tests.rigs import warm

DP, PP, SPARES = 4, 2, 1
SCRIPT = Path(site_training.__file__)
PACE_S = 0.05
"""Between two steps, so that an hour has some ten thousand of them and the machine is not busy with them alone."""
STEPS = 10**7
CALM_S = (2.0, 8.0)
"""Between a recovery and the next strike."""
STARVED_S = (1.5, 4.0)
"""Longer than the failure timeout."""
SECOND_S = 0.5
"""A second strike comes so soon at most, in the middle of the recovery from the first one."""
STALL_S = (0.05, 0.6)
SLOW_S = 30.0
"""In which a site that nothing else happens to has found a worker slow, and a plan for it or none."""
RECOVERED_S = 120.0
"""A strike that is not recovered from in so much time counts as a stand, however loaded the machine."""
ENDED_S = 60.0
LATE_GROWTH_BYTES_MAX = 16 << 20
"""By how much the controller's memory may be larger in the second half of a long run than in the first."""
LONG_S = 600.0


class Strike(Enum):
    KILL = "killed"
    HANG = "stopped for good"
    STALL = "stopped for a moment"
    TWICE = "killed, and another one in the recovery"
    STARVED = "all of them stopped for seconds"
    SLOW = "slow from now on"


class HeldNotError(Exception):
    """Something that was promised did not hold."""


@dataclass
class Told:
    """What the command has written to its file of events so far."""

    path: Path
    digests: dict[int, list[str]] = field(default_factory=dict)
    """Step to the digests of all layers."""
    kinds: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    recovered_s: list[float] = field(default_factory=list)
    looks: Counter[str] = field(default_factory=Counter)
    """For a faster plan, by what came of it: `stop` or `plan-kept`."""
    generation: int = 0
    """That trains now; 0 while the group recovers."""
    _read: int = 0
    _part: bytes = b""

    def look(self) -> None:
        """Take in what is new. Raises HeldNotError for a step that was told and is done again."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *lines, self._part = (self._part + new).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        self.kinds[kind] += 1
        self.looks[kind] += kind == "plan-kept" or (kind == "stop" and "computes at" in event["reason"])
        match kind:
            case "step":
                if event["step"] in self.digests:
                    raise HeldNotError(f"step {event['step']} was told twice")
                self.digests[event["step"]] = event["digests"]
            case "plan":
                if event["step"] < max(self.digests, default=0):
                    raise HeldNotError(f"plan {event['generation']} goes back to step {event['step']}")
                self.policies[event["policy"]] += 1
            case "training":
                self.generation = event["generation"]
            case "worker-lost" | "stop":
                self.generation = 0
            case "recovered":
                self.recovered_s.append(event["total_s"])


def script_environment() -> dict[str, str]:
    """For processes of the script, which imports from this package."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": warm.SEARCHED}


class Group:
    """The command under fire, and the folder that holds all its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = folder / "events.jsonl"
        self.events.touch()
        (folder / "tmp").mkdir()
        self.told = Told(self.events)
        self.memory: list[int] = []
        """Resident bytes of the controller, at every strike."""
        command = [
            "run", "--standalone", "--nproc", str(DP * PP), "--dp", str(DP), "--pp", str(PP), "--spares", str(SPARES),
            "--restarts", "1000000", "--audit", "--events", str(self.events), str(SCRIPT),
        ]  # fmt: skip
        self.slow = folder / "slow"
        """Process id of the worker that is slow."""
        training = json.dumps({"steps": STEPS, "pace_s": PACE_S, "slow": str(self.slow)})
        self.environment = {**script_environment(), "TMPDIR": str(folder / "tmp"), "TRAINING": training}
        self.environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # torch keeps one in TMPDIR otherwise
        self.log = (folder / "run.log").open("wb")
        self.process = psutil.Popen(
            [sys.executable, "-m", "chaosd", *command],
            env=self.environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def view(self) -> GroupView | None:
        """What the command's own board says; it may be a second old."""
        for path in (self.folder / "tmp").glob(f"{FOLDER_PREFIX}*/{BOARD_NAME}"):
            with suppress(OSError):  # it is being replaced
                return msgspec.json.decode(path.read_bytes(), type=GroupView)
        return None

    def until_calm(self, limit_s: float) -> GroupView:
        """Wait until a plan is in force, its workers train, and the board says so."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            self.told.look()
            if self.process.poll() is not None:
                raise HeldNotError(f"the command has ended with {self.process.returncode}")
            view = self.view() if self.told.generation else None
            if view is not None and view.generation == self.told.generation and view.phase == "training":
                return view
            time.sleep(0.05)
        raise HeldNotError(f"no recovery within {limit_s:g} s; the last events: {self._last_events()}")

    def _last_events(self) -> str:
        return " ".join(self.events.read_text(encoding="utf-8").splitlines()[-12:])

    def end(self) -> list[str]:
        """Ctrl+C; what does not hold then."""
        workers = self.process.children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(timeout=ENDED_S)
        except psutil.TimeoutExpired:
            return [f"the command has not ended {ENDED_S:g} s after Ctrl+C"]
        found = [] if code == 128 + signal.SIGINT else [f"the command has ended with {code} after Ctrl+C"]
        _, alive = psutil.wait_procs(workers, timeout=ENDED_S)
        found += [f"left behind: process {one.pid}" for one in alive]
        found += [f"left behind: {path}" for path in sorted((self.folder / "tmp").iterdir())]
        self.told.look()
        return found

    def close(self) -> None:
        """End whatever is left of it."""
        for one in [*self.process.children(recursive=True), self.process] if self.process.is_running() else []:
            one.kill()
        self.log.close()


class Fire:
    """Strikes, drawn from the seed; which worker they meet follows from what each of them holds then."""

    def __init__(self, group: Group, seed: int) -> None:
        self.group, self.draw = group, random.Random(seed)
        self.strikes: Counter[Strike] = Counter()

    def burn(self, seconds: float) -> None:
        """For so long, from when the workers train."""
        self.group.until_calm(RECOVERED_S)
        end_s = time.monotonic() + seconds
        next_told_s = time.monotonic() + 60.0
        while time.monotonic() < end_s:
            time.sleep(self.draw.uniform(*CALM_S))
            view = self.group.until_calm(RECOVERED_S)
            self.group.memory.append(self.group.process.memory_info().rss)
            self._strike(self.draw.choice(list(Strike)), view)
            self.group.until_calm(RECOVERED_S)
            if time.monotonic() >= next_told_s:
                next_told_s += 60.0
                steps, left_s = max(self.group.told.digests, default=0), max(0.0, end_s - time.monotonic())
                print(f"{self.strikes.total()} strikes, step {steps}, {left_s:.0f} s left", flush=True)

    def _strike(self, strike: Strike, view: GroupView) -> None:
        trains = [each for each in view.workers if each.state == "trains"]
        victims = trains if strike is Strike.STARVED else self._victims(view, 2 if strike is Strike.TWICE else 1)
        if not victims:
            return  # so few are left just now that a layer would be lost; others are on their way
        self.strikes[strike] += 1
        match strike:
            case Strike.KILL:
                _signal(victims[0], signal.SIGKILL)
            case Strike.HANG:
                _signal(victims[0], signal.SIGSTOP)
                self._until_lost(victims[0])
            case Strike.STALL:
                _signal(victims[0], signal.SIGSTOP)
                time.sleep(self.draw.uniform(*STALL_S))
                _signal(victims[0], signal.SIGCONT)
            case Strike.TWICE:
                _signal(victims[0], signal.SIGKILL)
                time.sleep(self.draw.uniform(0.0, SECOND_S))
                _signal(victims[1], signal.SIGKILL)
            case Strike.SLOW:
                self._slow_down(victims[0])
            case Strike.STARVED:
                for number, seconds in ((signal.SIGSTOP, self.draw.uniform(*STARVED_S)), (signal.SIGCONT, 0.0)):
                    for each in victims:
                        _signal(each, number)
                    time.sleep(seconds)

    def _slow_down(self, victim: WorkerView) -> None:
        looks, end_s = self.group.told.looks.total(), time.monotonic() + SLOW_S
        self.group.slow.write_text(str(victim.pid), encoding="utf-8")
        while self.group.told.looks.total() == looks and time.monotonic() < end_s:
            self.group.told.look()
            time.sleep(0.05)

    def _victims(self, view: GroupView, count: int) -> list[WorkerView]:
        """Workers without which each layer still has a holder. None where that cannot be."""
        training = [each for each in view.workers if each.state == "trains"]
        self.draw.shuffle(training)
        chosen: list[WorkerView] = []
        for each in training:
            left = [one for one in training if one is not each and one not in chosen]
            if len(chosen) < count and _layers(left) == _layers(training):
                chosen.append(each)
        return chosen if len(chosen) == count else []

    def _until_lost(self, victim: WorkerView) -> None:
        """Whoever stands still is found out, and killed."""
        end_s = time.monotonic() + RECOVERED_S
        while psutil.pid_exists(victim.pid) and time.monotonic() < end_s:
            self.group.told.look()
            time.sleep(0.05)
        if psutil.pid_exists(victim.pid):
            raise HeldNotError(f"worker {victim.worker} stands still, and nobody has ended it in {RECOVERED_S:g} s")


def _layers(workers: Sequence[WorkerView]) -> set[int]:
    found: set[int] = set()
    for each in workers:
        first, _, last = each.stage.partition(" to ")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _signal(victim: WorkerView, number: signal.Signals) -> None:
    try:
        os.kill(victim.pid, number)
    except ProcessLookupError:
        pass  # it has ended meanwhile, as one does that stands still for too long


def _differences(told: Told, folder: Path) -> Iterator[str]:
    """Steps that did not leave the bits of the same training in one process."""
    steps = max(told.digests, default=0)
    out = folder / "alone.jsonl"
    environment = {**script_environment(), "CHAOS_STANDALONE": "1"}
    environment["TRAINING"] = json.dumps({"steps": steps, "digests": str(out)})
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    print(f"the same {steps} steps in one process", flush=True)
    subprocess.run([sys.executable, str(SCRIPT)], check=True, env=environment)
    seen = 0
    with out.open(encoding="utf-8") as lines:
        for line in lines:
            step, digests = json.loads(line)
            seen += 1
            if told.digests.get(step, digests) != digests:
                yield f"step {step} left other bits than in one process"
    if seen != steps or not steps:
        yield f"in one process there were {seen} steps, of {steps}"


def soak(seconds: float, seed: int, out: Path | None) -> list[str]:
    """What did not hold. The folder stays if anything did not."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-soak-workers-"))
    failures: list[str] = []
    with ended_by_signals():
        group = Group(folder)
        fire = Fire(group, seed)
        try:
            fire.burn(seconds)
            failures += group.end()
            failures += list(_differences(group.told, folder))[:5]
        except HeldNotError as error:
            failures.append(str(error))
        finally:
            group.close()
    failures += _grown(group.memory, seconds)
    told = group.told
    figures = {
        "strikes": {kind.value: count for kind, count in fire.strikes.items()},
        "steps": max(told.digests, default=0),
        "steps_told": len(told.digests),
        "plans": dict(told.policies),
        "looks_for_a_faster_plan": {kind: count for kind, count in told.looks.items() if count},
        "workers_lost": told.kinds["worker-lost"],
        "workers_started": told.kinds["worker-started"],
        "recovered_median_s": sorted(told.recovered_s)[len(told.recovered_s) // 2] if told.recovered_s else None,
        "recovered_max_s": max(told.recovered_s, default=None),
        "controller_mib": [round(size / 2**20, 1) for size in group.memory[:: max(1, len(group.memory) // 12)]],
    }
    print(json.dumps(figures, indent=2))
    if out is not None:
        out.write_text(json.dumps({"seed": seed, "seconds": seconds, **figures}) + "\n", encoding="utf-8")
    if failures:
        print(f"events and log: {folder}")
    else:
        shutil.rmtree(folder)
    return failures


def _grown(memory: Sequence[int], seconds: float) -> list[str]:
    half = len(memory) // 2
    if seconds < LONG_S or not half or max(memory[half:]) - max(memory[:half]) <= LATE_GROWTH_BYTES_MAX:
        return []
    return [f"the controller's memory went from {max(memory[:half])} to {max(memory[half:])} bytes"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.workers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long (default %(default)g)")
    parser.add_argument("--seed", type=int, help="of the strikes (default: a new one)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    failures = soak(options.seconds, seed, options.json)
    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        print(f"seed {seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
