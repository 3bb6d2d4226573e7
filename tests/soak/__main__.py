"""python -m tests.soak [--seconds N] [--seed N]: five daemons and their training processes under fire.

Ends with status 1, and the seed to replay, unless afterwards every site trains again, all states and results of common
rounds are equal bit for bit, nothing is left and no daemon's memory grew without bound. The faults are drawn from the
seed; their timing against the rounds is the machine's.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from pathlib import Path

import psutil

from chaosd.lab.processes import LabError, Processes
from chaosd.lab.report import judge
from chaosd.lab.scenario import Scenario
from tests.soak.fire import Fire, SoakWatch
from tests.soak.nemesis import draw_faults

HEART = Path(__file__).resolve().parents[2] / "examples" / "heart" / "train.py"
HOSPITALS = {"one": "Cleveland", "two": "Hungary", "three": "VA Long Beach", "four": "Switzerland", "five": "Cleveland"}
LINKS = (
    ("one", "two", 100, 2), ("two", "three", 80, 3), ("three", "four", 50, 5), ("four", "five", 100, 2),
    ("five", "one", 60, 4), ("one", "three", 40, 6), ("two", "five", 100, 1),
)  # fmt: skip
FAILURE_TIMEOUT_S = 1.0
SECONDS, PACE_S = 600.0, 0.05


def scenario() -> Scenario:
    return Scenario.model_validate(
        {
            "name": "soak",
            "failure_timeout_s": FAILURE_TIMEOUT_S,
            "min_sites": 2,
            "worker": {
                "script": HEART,
                "arguments": [
                    "--hospital", "{hospital}", "--seed", "1", "--pace", str(PACE_S), "--rounds", "10000000",
                    "--digests", "--socket", "{socket}", "--report", "{report}", "--until", "{until}",
                ],
            },
            "sites": [{"name": name, "values": {"hospital": hospital}} for name, hospital in HOSPITALS.items()],
            "links": [
                {"between": [one, other], "rate_mbit": rate, "latency_ms": latency}
                for one, other, rate, latency in LINKS
            ],
            "checks": {"rounds_at_least": 100},
        }
    )  # fmt: skip


def soak(seconds: float, seed: int) -> list[str]:
    """What did not hold. The sites' folder stays if anything did not."""
    pairs = tuple((one, other) for one, other, _, _ in LINKS)
    faults = draw_faults(random.Random(seed), sites=tuple(HOSPITALS), links=pairs, seconds=seconds)
    processes = Processes(scenario(), keep=True)
    failures: list[str] = []
    try:
        with processes:
            watch = SoakWatch(processes)
            fire = Fire(processes, watch, lambda line: print(line, flush=True))
            try:
                fire.begin()
                fire.burn(faults, seconds)
                fire.calm()
                fire.end()
                failures += judge_all(fire, watch)
            except LabError as error:
                failures += [str(error), *fire.failures, *(site.tail() for site in processes.sites.values())]
            finally:
                fire.close()
            summarize(fire, watch)
    except BaseException:
        shutil.rmtree(processes.folder, ignore_errors=True)
        raise
    failures += left_behind(processes.folder)
    if failures:
        print(f"logs: {processes.folder}")
    else:
        shutil.rmtree(processes.folder)
    return failures


def judge_all(fire: Fire, watch: SoakWatch) -> list[str]:
    verdict = judge(watch)
    failures = [*fire.failures, *verdict.failures, *fire.memory.failures()]
    if verdict.figures["rounds"] < watch.round:
        failures.append(f"round {watch.round} was seen, but the sites ended in round {verdict.figures['rounds']}")
    for site in watch.processes.sites.values():
        for log in ("daemon.log", "worker.log"):
            text = (site.folder / log).read_text(encoding="utf-8", errors="replace")
            if "Traceback" in text:
                failures.append(f"a traceback in the {log} of {site.name}:\n{text[text.index('Traceback') :][:2000]}")
    compared, results = verdict.figures["rounds_compared"], verdict.figures["results_compared"]
    print(f"{verdict.figures['rounds']} rounds; states compared after {compared}, results of {results}")
    return failures


def summarize(fire: Fire, watch: SoakWatch) -> None:
    counts = ", ".join(f"{count} {kind.value}" for kind, count in fire.counts.items() if count)
    print(f"{sum(fire.counts.values())} faults ({counts}); {fire.worker_ends} training processes ended by themselves")
    pause_s = watch.longest_pause_s if fire.longest_pause_s is None else fire.longest_pause_s
    print(f"longest time without a completed round: {pause_s:.1f} s; {fire.memory.told()}")


def left_behind(folder: Path) -> list[str]:
    """After everything ended: sockets in the sites' folders, processes that were started for them."""
    found = [f"left behind: {path}" for path in folder.glob("*/*.sock")]
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or []):
            found.append(f"left behind: process {process.pid}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long (default %(default)g; short: 60)")
    parser.add_argument("--seed", type=int, help="of the faults (default: a new one)")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"five sites under fire for {options.seconds:g} s, seed {seed}", flush=True)
    begun_s = time.monotonic()
    failures = soak(options.seconds, seed)
    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        print(f"replay: python -m tests.soak --seconds {options.seconds:g} --seed {seed}")
        return 1
    print(f"everything held ({time.monotonic() - begun_s:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
