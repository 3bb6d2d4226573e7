"""Carries out the drawn faults on real sites, starts again what ended (as systemd does at an institution), looks on.

At most FAULTY_SITES_MAX of the five sites are struck or on their way back at a time: a majority is always there, so
rounds have to go on between the faults, and everybody has to be back after them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaosd.client import NoDaemonError, RequestRefusedError
from chaosd.lab.processes import LabError, LabSite, Processes
from chaosd.lab.watching import EVENTS_KEPT, Watch
from tests.soak.memory import Memory
from tests.soak.nemesis import Fault, Kind
from tests.soak.shapes import Shapes

if TYPE_CHECKING:
    from chaosd.status import Outcome

LOOK_S = 0.1
FAULTY_SITES_MAX = 2
FIRST_ROUND_LIMIT_S = 120.0
BACK_LIMIT_S = 120.0
"""Correctness, not speed: after the last fault everybody must be back and rounds go on, on a loaded machine too."""
ROUNDS_AFTER = 50
LAST_ROUNDS = 30
SHAPED = frozenset({Kind.PARTITION, Kind.ONE_WAY, Kind.SLOW, Kind.CORRUPT})


@dataclass
class SoakWatch(Watch):
    """Looks as the lab does, but an end of a process is no error here: fire.py judges and restarts."""

    longest_pause_s: float = 0.0
    moved_s: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        before = self.round
        for site in self.processes.sites.values():
            if not site.daemon_runs() or "daemon" in site.stopped:
                site.status = None
                continue
            status = site.ask()
            if status is not None:
                self.round = max(self.round, status.round)
            self.events += [(site.name, event) for event in site.news() if len(self.events) < EVENTS_KEPT]
        now_s = time.monotonic()
        if self.round > before or self.round == 0:
            self.moved_s = now_s
        self.longest_pause_s = max(self.longest_pause_s, now_s - self.moved_s)


class Fire:
    def __init__(self, processes: Processes, watch: SoakWatch, say: Callable[[str], None]) -> None:
        self.processes, self.watch, self._say = processes, watch, say
        self.memory = Memory()
        self.failures: list[str] = []
        self.counts = dict.fromkeys(Kind, 0)
        self.worker_ends = 0
        self.longest_pause_s: float | None = None
        self._shapes = Shapes(processes)
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="soak")
        self._starting: dict[str, Future[None]] = {}
        self._links: list[tuple[Fault, Future[Outcome]]] = []
        self._acting: list[tuple[float, Fault]] = []
        self._ended_by_us: set[int] = set()
        self._looked_at_memory_s = 0.0

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    # -- the phases

    def begin(self) -> None:
        for site in self.processes.sites.values():
            self.processes.start(site)
        self._wait(
            lambda: self.watch.round > 0 and self._all_train(), FIRST_ROUND_LIMIT_S, "every site trains at first"
        )

    def burn(self, faults: list[Fault], seconds: float) -> None:
        """Each fault at its time, or as soon as a site is fit for it."""
        begun_s, left = time.monotonic(), list(faults)
        while (elapsed_s := time.monotonic() - begun_s) < seconds:
            self._look()
            for fault in [fault for end_s, fault in self._acting if end_s <= time.monotonic()]:
                self._undo(fault)
            for fault in [fault for fault in left if fault.at_s <= elapsed_s]:
                fit = self._fit(fault)
                if fit is not None:
                    left.remove(fault)
                    self._say(f"{elapsed_s:6.1f} s  round {self.watch.round:6d}  {fit}")
                    self._strike(fit)
                    break

    def calm(self) -> None:
        """Every fault is undone; everybody must be back and rounds go on."""
        for _, fault in list(self._acting):
            self._undo(fault)
        self._wait(lambda: self._all_train() and not self._links, BACK_LIMIT_S, "every site trains again")
        wanted = self.watch.round + ROUNDS_AFTER
        self._wait(lambda: self.watch.round >= wanted, BACK_LIMIT_S, f"{ROUNDS_AFTER} more rounds")
        self.longest_pause_s = self.watch.longest_pause_s

    def end(self) -> None:
        """All sites stop after one common round and end by themselves."""
        fresh = self.processes.until.with_suffix(".new")
        fresh.write_text(str(self.watch.round + LAST_ROUNDS), encoding="utf-8")
        fresh.replace(self.processes.until)
        sites = self.processes.sites.values()
        self._wait(
            lambda: not any(site.daemon_runs() or site.worker_runs() for site in sites),
            BACK_LIMIT_S,
            "every process ends after the last round",
            supervised=False,
        )
        for site in sites:
            if site.daemon is not None and site.daemon.returncode != 0:
                self.failures.append(f"the daemon of {site.name} ended with {site.daemon.returncode}\n{site.tail()}")

    # -- faults

    def _fit(self, fault: Fault) -> Fault | None:
        """The fault on sites that can take it now (the next ones by name where those drawn cannot), or None: later."""
        if fault.kind in SHAPED - {Kind.PARTITION}:
            return fault
        names = list(self.processes.sites)
        struck = {name for _, acting in self._acting if acting.kind not in SHAPED for name in acting.sites}
        struck |= {name for _, acting in self._acting if acting.kind is Kind.PARTITION for name in acting.sites}
        bad = {name for name in names if name in struck or not self.processes.sites[name].is_training_member()}
        if fault.kind is Kind.UNLINK:
            return None if bad & set(fault.sites) else fault
        first = names.index(fault.sites[0])
        good = [name for name in names[first:] + names[:first] if name not in bad]
        count = len(fault.sites)
        if len(bad) + count > FAULTY_SITES_MAX or len(good) < count:
            return None
        return Fault(
            at_s=fault.at_s, kind=fault.kind, sites=tuple(good[:count]), what=fault.what, lasts_s=fault.lasts_s
        )

    def _strike(self, fault: Fault) -> None:
        self.counts[fault.kind] += 1
        site = self.processes.sites[fault.sites[0]]
        self._acting.append((time.monotonic() + fault.lasts_s, fault))
        if fault.kind in SHAPED:
            self._shapes.acting.append(fault)
            self._shapes.apply()
        match fault.kind:
            case Kind.KILL:
                if fault.what != "worker" and site.daemon is not None:
                    self._ended_by_us.add(site.daemon.pid)
                self.processes.kill(site, fault.what)
            case Kind.STOP:
                self.processes.signal(site, fault.what, signal.SIGSTOP)
            case Kind.LEAVE:
                if site.daemon is not None:
                    self._ended_by_us.add(site.daemon.pid)
                self.processes.signal(site, "worker", signal.SIGINT)
            case Kind.UNLINK:
                self._change_link(fault, add=False)
            case Kind.PARTITION | Kind.ONE_WAY | Kind.SLOW | Kind.CORRUPT:
                pass

    def _undo(self, fault: Fault) -> None:
        self._acting = [(end_s, acting) for end_s, acting in self._acting if acting is not fault]
        if fault.kind in SHAPED:
            self._shapes.acting = [acting for acting in self._shapes.acting if acting is not fault]
            self._shapes.apply()
        if fault.kind is Kind.STOP:
            self.processes.signal(self.processes.sites[fault.sites[0]], fault.what, signal.SIGCONT)
        if fault.kind is Kind.UNLINK:
            self._change_link(fault, add=True)

    def _change_link(self, fault: Fault, *, add: bool) -> None:
        one, other = (self.processes.sites[name] for name in fault.sites)
        future = self._pool.submit(one.client.change_link, other.identity.site, add=add)
        self._links.append((fault, future))

    # -- looking on

    def _look(self, *, supervised: bool = True) -> None:
        begun_s = time.monotonic()
        self.watch.look()
        self._shapes.apply()
        if begun_s - self._looked_at_memory_s >= 1.0:
            self._looked_at_memory_s = begun_s
            for site in self.processes.sites.values():
                if site.daemon is not None and site.daemon_runs():
                    self.memory.look(site.name, site.daemon.pid)
        if supervised:
            self._supervise()
        for one in [one for one in self._links if one[1].done()]:
            self._links.remove(one)
            error = one[1].exception()
            if error is not None and not isinstance(error, NoDaemonError | RequestRefusedError):
                raise error  # an error in this program; that a struck daemon does not answer is none
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - begun_s)))

    def _supervise(self) -> None:
        """Start again what ended, unless a fault keeps it down."""
        held = {
            name
            for _, fault in self._acting
            if fault.kind in (Kind.KILL, Kind.STOP, Kind.LEAVE)
            for name in fault.sites
        }
        for name, site in self.processes.sites.items():
            future = self._starting.get(name)
            if future is not None:
                if not future.done():
                    continue
                del self._starting[name]
                error = future.exception()
                if isinstance(error, LabError):
                    self.failures.append(str(error))
                elif error is not None:
                    raise error
            if name in held or (site.daemon_runs() and site.worker_runs()):
                continue
            self._note_ends(site)
            self._starting[name] = self._pool.submit(self.processes.start, site)

    def _note_ends(self, site: LabSite) -> None:
        daemon, worker = site.daemon, site.worker
        if daemon is not None and daemon.poll() is not None and daemon.pid not in self._ended_by_us:
            self.failures.append(f"the daemon of {site.name} ended by itself ({daemon.returncode})\n{site.tail()}")
        if worker is not None and worker.poll() not in (None, 0, -signal.SIGKILL):
            self.worker_ends += 1

    def _all_train(self) -> bool:
        sites = self.processes.sites.values()
        return not self._starting and all(site.is_training_member() and site.worker_runs() for site in sites)

    def _wait(self, condition: Callable[[], bool], limit_s: float, what: str, *, supervised: bool = True) -> None:
        end_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end_s:
                states = ", ".join(self._state(site) for site in self.processes.sites.values())
                raise LabError(f"not within {limit_s:g} s: {what} (round {self.watch.round}; {states})")
            self._look(supervised=supervised)

    @staticmethod
    def _state(site: LabSite) -> str:
        if site.status is None:
            return f"{site.name} does not answer"
        status = site.status
        worker = status.worker.phase if status.worker.connected else "none"
        return f"{site.name} {status.state} at round {status.round}, worker {worker}, {status.paused or 'not paused'}"
