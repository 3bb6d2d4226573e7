"""python -m tests.soak [--seconds N] [--seed N]: five daemons and their training processes under fire.

Ends with status 1, the story, the seed and the logs' folder, unless every fault heals, one epoch has one roster and one
term one scheduler, all states and results of common rounds are equal bit for bit, every site trains to one common end,
nothing is left and no daemon's memory, descriptors or files grew beyond their bounds. The faults are drawn from the
seed; their timing against the rounds is the machine's.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

from chaos_lab.children import ended_by_signals
from chaos_lab.errors import LabError
from tests.soak.fire import Fire, ViolationError
from tests.soak.nemesis import Ground, Kind, draw_faults
from tests.soak.sites import LINKS, NAMES, SPARE_LINKS, Site, Sites
from tests.soak.story import as_result, figures_of, story, told

SECONDS = 600.0
FAILURE_TIMEOUT_S = 1.0
SECONDS_A_FAULT = 6.0
"""At least one fault in so many seconds: 100 in ten minutes."""
DRAWN_BEYOND = 3
"""Faults are drawn for so many times the time asked for, should the machine be too slow for enough of them."""
LONG_S = 300.0
"""In so much time every kind of fault must have shown what it is there for."""
HANGS_FELT, HANG_FELT_S = 2, 14.0
"""A hung script shows in so many hangs of so long: shorter ones may end before their site is left behind, and one alone
may meet with another failure of its own site, or with a new scheduler."""


def soak(
    *,
    seconds: float,
    seed: int,
    failure_timeout_s: float,
    faults_min: int,
    privileged: bool,
    out: Path | None,
    keep: bool,
) -> list[str]:
    """What did not hold. The sites' folder stays if anything did not."""
    random_ = random.Random(seed)
    failures: list[str] = []
    with ended_by_signals(), Sites(failure_timeout_s=failure_timeout_s, privileged=privileged) as sites:
        full_disks = all(site.disk.can_fill for site in sites.sites.values())
        print(sites.means, flush=True)
        print(f"full disks: {sites.sites[NAMES[0]].disk.means}; clock jumps: of the wall clock only", flush=True)
        ground = Ground(
            sites=NAMES, links=tuple((one, other) for one, other, _, _ in LINKS), spare_links=SPARE_LINKS,
            timeout_s=failure_timeout_s, namespaces=sites.network is not None, full_disks=full_disks,
        )  # fmt: skip
        faults = draw_faults(random_, ground, seconds=DRAWN_BEYOND * seconds)
        fire = Fire(sites, anchor=random_.choice(NAMES), say=lambda line: print(line, flush=True))
        try:
            fire.begin()
            fire.burn(faults, seconds=seconds, faults_min=faults_min)
            fire.calm()
            failures += fire.resources.failures_when_calm(list(sites.sites.values()))
            fire.end()
            failures += fire.oracles.at_the_end()
            failures += _too_little(fire, faults_min=faults_min, seconds=seconds)
        except (ViolationError, LabError) as error:
            failures += [str(error), story(fire)]
        finally:
            if not failures:
                failures += _left_behind(sites)
            sites.end_all()
            fire.close()
        figures = figures_of(fire)
        print(told(figures))
        for line in fire.worker_ends:
            print(f"a training process ended by itself: {line}")
        if out is not None:
            result = as_result(figures, seed=seed, seconds=seconds, means=sites.means)
            out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        sites.keep = keep or bool(failures)
    failures += _left_on_the_machine(sites)
    if sites.keep:
        print(f"logs: {sites.folder}")
    return failures


def _too_little(fire: Fire, *, faults_min: int, seconds: float) -> list[str]:
    """A soak that struck nothing has shown nothing."""
    found = []
    count = len(fire.wounds.all)
    if count < faults_min:
        found.append(f"{count} faults found a site fit for them; at least {faults_min} are wanted")
    if seconds < LONG_S:
        return found
    told = fire.oracles.told
    seen = {
        Kind.SPOIL: fire.oracles.wrong_blocks, Kind.BREAK: fire.oracles.broken_records, Kind.DISK: fire.disk_ends,
        Kind.NAN: told["skip"], Kind.HANG: told["rest"], Kind.MODEL: told["other-model"], Kind.DRIFT: told["drift"],
    }  # fmt: skip
    struck = {wound.fault.kind for wound in fire.wounds.all}
    hangs = [wound.fault.lasts_s for wound in fire.wounds.all if wound.fault.kind is Kind.HANG]
    if sum(lasts_s >= HANG_FELT_S for lasts_s in hangs) < HANGS_FELT:
        struck.discard(Kind.HANG)
    return found + [f"'{kind.value}' was never felt" for kind, times in seen.items() if kind in struck and not times]


def _left_behind(sites: Sites) -> list[str]:
    """After every process ended by itself: processes, sockets, ports, temporary files of theirs."""
    found = [f"left behind: process {one.pid} ({one.name()})" for one in sites.stragglers()]
    for site in sites.sites.values():
        found += [f"left behind: socket {path}" for path in site.data_dir.glob("*.sock")]
        found += [f"left behind: temporary file {path}" for path in _temporary(site)]
        found += [f"left behind: {site.name} listens on {one}" for one in sites.listening(site)]
    found += [f"left behind: shared memory {path}" for path in _shared_memory(sites)]
    return found


def _temporary(site: Site) -> list[Path]:
    return sorted((site.folder / "tmp").iterdir())


def _shared_memory(sites: Sites) -> list[Path]:
    """Segments with a name that came since the soak began; arenas have none."""
    folder = Path("/dev/shm")
    begun_s = sites.folder.stat().st_ctime
    return [path for path in folder.glob("*chaos*") if path.stat().st_ctime >= begun_s] if folder.is_dir() else []


def _left_on_the_machine(sites: Sites) -> list[str]:
    """After the soak has taken down its own network and disks."""
    found = [f"left behind: namespace {name}" for name in sites.network.left()] if sites.network is not None else []
    mounts = Path("/proc/self/mounts")
    text = mounts.read_text(encoding="utf-8") if mounts.exists() else ""
    found += [f"left behind: mount {line}" for line in text.splitlines() if str(sites.folder) in line]
    if sites.folder.exists() and not sites.keep:
        found.append(f"left behind: folder {sites.folder}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long (default %(default)g; short: 60)")
    parser.add_argument("--seed", type=int, help="of the faults (default: a new one)")
    parser.add_argument("--failure-timeout-s", type=float, default=FAILURE_TIMEOUT_S, help="default %(default)g")
    parser.add_argument("--faults-at-least", type=int, help="default: one in 6 s, 100 in ten minutes")
    parser.add_argument("--unprivileged", action="store_true", help="as without root: no namespaces, no tmpfs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--keep", action="store_true", help="keep the sites' folders though everything held")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    seconds = options.seconds
    faults_min = options.faults_at_least if options.faults_at_least is not None else round(seconds / SECONDS_A_FAULT)
    print(f"five sites under fire for {seconds:g} s, at least {faults_min} faults, seed {seed}", flush=True)
    begun_s = time.monotonic()
    try:
        failures = soak(
            seconds=seconds, seed=seed, failure_timeout_s=options.failure_timeout_s, faults_min=faults_min,
            privileged=not options.unprivileged, out=options.json, keep=options.keep,
        )  # fmt: skip
    except KeyboardInterrupt as error:
        print(f"given up ({error or 'Ctrl+C'}); everything was ended and removed", file=sys.stderr)
        return 130
    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        print(f"replay: python -m tests.soak --seconds {seconds:g} --seed {seed}")
        return 1
    print(f"everything held ({time.monotonic() - begun_s:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
