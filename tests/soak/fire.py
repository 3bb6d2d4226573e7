"""Carries out the drawn faults on real sites, starts again what ended (as systemd does at an institution), looks on.

At most FAULTY_SITES_MAX of the five sites are struck or on their way back at a time: a majority is always there, so
rounds have to go on between the faults, and everybody has to be back after them. One site, the anchor, keeps its daemon
from beginning to end (it is stopped, cut off and removed all the same): its memory is that of the whole time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from chaos_lab.errors import LabError
from chaosd.api.client import NoDaemonError, RequestRefusedError
from tests.soak.full_disk import FullDisk
from tests.soak.nemesis import ON_SITES, SCHEDULER, Fault, Kind
from tests.soak.oracles import Oracles
from tests.soak.resources import Resources
from tests.soak.shapes import SHAPED, Shapes
from tests.soak.sites import LINKS, NAMES, Site, Sites
from tests.soak.wounds import Wounds

LOOK_S, SLOW_LOOK_S, TELL_S = 0.1, 1.0, 5.0
EVENTS_AT_ONCE = 500
FAULTY_SITES_MAX, LINK_FAULTS_MAX = 2, 3
LIMIT_S = 150.0
"""Correctness, not speed: first round, no round for so long, all back, the end; on a loaded machine too."""
ROUNDS_AFTER, LAST_ROUNDS = 50, 30
LONGEST_FACTOR = 3
"""The fire may take so many times its time until enough faults have found a site fit for them."""
MEND_PAUSE_S = 5.0
LONG_PAUSE_S = 3.0
"""Without a round for so long: what every site says goes to the log."""


class ViolationError(Exception):
    """Something that must hold did not; the text says what."""


class Fire:
    def __init__(self, sites: Sites, *, anchor: str, say: Callable[[str], None]) -> None:
        self.sites, self._anchor, self._say = sites, anchor, say
        self.wounds, self.oracles, self.resources = Wounds(sites.sites), Oracles(sites.sites), Resources()
        self.round = 0
        self.longest_pause_s = 0.0
        self.worker_ends: list[str] = []
        self.disk_ends = self.disk_refusals = 0
        self.told: list[str] = []
        self._shapes = Shapes(sites)
        self._pool = ThreadPoolExecutor(12, thread_name_prefix="soak")
        self._starting: dict[str, Future[None]] = {}
        self._links: list[Future[object]] = []
        self._disks: dict[str, tuple[FullDisk, Future[None]]] = {}
        self._acting: list[tuple[float, Fault]] = []
        self._ended_by_us: set[int] = set()
        self._begun_s = self._moved_s = time.monotonic()
        self._slow_look_s = self._told_s = self._mended_s = 0.0

    def close(self) -> None:
        """After every process has ended; waits for what still asks them."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    # -- the phases

    def begin(self) -> None:
        for site in self.sites.sites.values():
            self.sites.start(site)
        self._wait(lambda: self.round > 0 and self._all_train(), "every site trains at first")

    def burn(self, faults: list[Fault], *, seconds: float, faults_min: int) -> None:
        """Each fault at its time, or as soon as a site is fit for it; longer than `seconds` if too few were."""
        begun_s, left = time.monotonic(), list(faults)
        while (elapsed_s := time.monotonic() - begun_s) < seconds or (
            len(self.wounds.all) < faults_min and left and elapsed_s < LONGEST_FACTOR * seconds
        ):
            self._look()
            for fault in [fault for end_s, fault in self._acting if end_s <= time.monotonic()]:
                self._undo(fault)
            for fault in [fault for fault in left if fault.at_s <= elapsed_s]:
                fit = self._fit(fault)
                if fit is not None:
                    left.remove(fault)
                    self._strike(fit)
                    break

    def calm(self) -> None:
        """Every fault is undone; everybody must be back, every wound healed, and rounds go on."""
        for _, fault in list(self._acting):
            self._undo(fault)
        self._wait(lambda: self._all_train() and self.wounds.are_closed and not self._links, "every site trains again")
        wanted = self.round + ROUNDS_AFTER
        self._wait(lambda: self.round >= wanted, f"{ROUNDS_AFTER} more rounds")
        self._wait(self._links_stand, "every link of the beginning stands again")

    def end(self) -> None:
        """All sites stop after one common round and end by themselves."""
        fresh = self.sites.until.with_suffix(".new")
        fresh.write_text(str(self.round + LAST_ROUNDS), encoding="utf-8")
        fresh.replace(self.sites.until)
        every = self.sites.sites.values()
        self._wait(
            lambda: not any(site.daemon_runs() or site.worker_runs() for site in every),
            "every process ends after the last round",
            supervised=False,
        )
        for site in every:
            if site.daemon is not None and site.daemon.returncode != 0:
                raise ViolationError(f"the daemon of {site.name} ended with {site.daemon.returncode}, not 0")

    # -- faults

    def _fit(self, fault: Fault) -> Fault | None:
        """The fault on sites that can take it now (the next ones by name where those drawn cannot), or None: later."""
        bad = self._bad()
        acting = [one.kind for _, one in self._acting]
        if fault.kind is Kind.CLOCK:
            return None if Kind.CLOCK in acting else fault
        if fault.kind not in ON_SITES:
            busy = sum(kind not in ON_SITES and kind is not Kind.CLOCK for kind in acting) >= LINK_FAULTS_MAX
            return None if busy or bad & set(fault.sites) else fault
        if (fault.kind is Kind.DISK and Kind.DISK in acting) or Kind.DRIFT in acting:
            return None  # who fetches a state meanwhile may get the one that drifts: no majority shall
        if fault.ends_daemon():
            bad.add(self._anchor)
        first = NAMES.index(self._named(fault.sites[0]))
        good = [name for name in NAMES[first:] + NAMES[:first] if name not in bad]
        count = len(fault.sites)
        struck = 1 if fault.kind is Kind.SPOIL else count
        if len(bad - {self._anchor} | self._bad()) + struck > FAULTY_SITES_MAX or len(good) < count:
            return None
        return replace(fault, sites=tuple(good[:count]))

    def _bad(self) -> set[str]:
        struck = {name for _, one in self._acting if one.kind in ON_SITES for name in one.sites}
        return {name for name, site in self.sites.sites.items() if name in struck or not site.trains()}

    def _named(self, name: str) -> str:
        if name != SCHEDULER:
            return name
        known = [site.status.scheduler for site in self.sites.sites.values() if site.status is not None]
        found = [one.name for one in self.sites.sites.values() if one.identity.site in known]
        return found[0] if found else NAMES[0]

    def _strike(self, fault: Fault) -> None:
        line = f"{time.monotonic() - self._begun_s:6.1f} s  round {self.round:6d}  {fault}"
        self.told.append(line)
        self._say(line)
        self.wounds.struck(fault, self.round)
        site = self.sites.sites[fault.sites[0]]
        self._acting.append((time.monotonic() + fault.lasts_s, fault))
        if fault.kind in SHAPED:
            self._shapes.acting.append(fault)
            self._shapes.apply()
        if fault.ends_daemon() and site.daemon is not None:
            self._ended_by_us.add(site.daemon.pid)
        match fault.kind:
            case Kind.KILL:
                site.kill(fault.what)
            case Kind.SPOIL:
                site.kill("worker")
            case Kind.STOP:
                site.signal(fault.what, signal.SIGSTOP)
            case Kind.LEAVE:
                self._leave(site, fault.what)
            case Kind.UNPLUG:
                assert self.sites.network is not None
                self.sites.network.unplug(site.name, out=True)
            case Kind.UNLINK | Kind.LINK:
                self._change_link(fault, add=fault.kind is Kind.LINK)
            case Kind.BREAK:
                stream = None if fault.what == "control" else int(fault.what)
                far = self.sites.sites[fault.sites[1]].identity.site
                self._ask(lambda: site.client.break_record(far, stream=stream))
            case Kind.DISK:
                busy = {name for _, one in self._acting for name in one.sites}
                full = FullDisk(self.sites, site, busy)
                self._disks[site.name] = (full, self._pool.submit(full.run, fault.lasts_s))
            case Kind.CLOCK:
                site.jump(fault.jump_s)
            case Kind.NAN | Kind.HANG | Kind.DRIFT | Kind.MODEL:
                site.mistake.write_text(fault.kind.value, encoding="utf-8")
                if fault.kind is Kind.MODEL:
                    site.kill("worker")  # the next one has it
            case _:
                pass  # Shapes has done it

    def _undo(self, fault: Fault) -> None:
        site = self.sites.sites[fault.sites[0]]
        if fault.kind is Kind.DISK and not self._disk_is_over(site):
            return
        if fault.kind is Kind.DRIFT and not self._is_set_right(site, fault):
            return
        self._acting = [(end_s, acting) for end_s, acting in self._acting if acting is not fault]
        if fault.kind in SHAPED:
            self._shapes.acting = [acting for acting in self._shapes.acting if acting is not fault]
            self._shapes.apply()
        match fault.kind:
            case Kind.STOP:
                site.signal(fault.what, signal.SIGCONT)
            case Kind.UNPLUG:
                assert self.sites.network is not None
                self.sites.network.unplug(site.name, out=False)
            case Kind.UNLINK | Kind.LINK:
                self._change_link(fault, add=fault.kind is Kind.UNLINK)
            case Kind.CLOCK:
                site.jump(0.0)
            case Kind.NAN | Kind.HANG | Kind.MODEL:
                site.mistake.unlink()
            case _:
                pass
        self.wounds.undone(fault, self.round)

    def _leave(self, site: Site, what: str) -> None:
        """Ctrl+C in the script, SIGTERM to the daemon as systemd sends it, or `chaosd leave`."""
        match what:
            case "worker":
                site.signal("worker", signal.SIGINT)
            case "daemon":
                site.signal("daemon", signal.SIGTERM)
            case _:
                self._ask(lambda: site.client.leave("asked for by the nemesis"))

    def _change_link(self, fault: Fault, *, add: bool) -> None:
        one, other = (self.sites.sites[name] for name in fault.sites)
        self._ask(lambda: one.client.change_link(other.identity.site, add=add))

    def _ask(self, ask: Callable[[], object]) -> None:
        self._links.append(self._pool.submit(ask))

    def _is_set_right(self, site: Site, fault: Fault) -> bool:
        """Its script removes the file once it has the state of the others again."""
        (end_s,) = [end_s for end_s, acting in self._acting if acting is fault]
        if site.mistake.exists() and time.monotonic() > end_s + LIMIT_S:
            raise ViolationError(f"{site.name} was not set right within {LIMIT_S:g} s: {fault}")
        return not site.mistake.exists()

    def _disk_is_over(self, site: Site) -> bool:
        full, future = self._disks[site.name]
        if not future.done():
            return False
        del self._disks[site.name]
        future.result()
        self.disk_ends += full.ended
        self.disk_refusals += full.refused
        if full.failures:
            raise ViolationError("\n".join(full.failures))
        return True

    # -- looking on

    def _look(self, *, supervised: bool = True) -> None:
        begun_s = time.monotonic()
        before = self.round
        for site in self.sites.sites.values():
            asked = site.daemon_runs() and "daemon" not in site.stopped
            site.status = site.ask() if asked else None
            if site.status is not None:
                self.round = max(self.round, site.status.round)
        now_s = time.monotonic()
        if self.round > before or self.round == 0:
            self._moved_s = now_s
        if supervised:
            self.longest_pause_s = max(self.longest_pause_s, now_s - self._moved_s)
            if now_s - self._moved_s > LIMIT_S:
                raise ViolationError(f"no round for {LIMIT_S:g} s")
            self._supervise()
            self._shapes.apply()
        if begun_s - self._slow_look_s >= SLOW_LOOK_S:
            self._slow_look_s = begun_s
            self._slow_look(supervised=supervised)
        self._reap()
        if (wound := self.wounds.look(self.round)) is not None and supervised:
            raise ViolationError(f"not healed within its limit: {wound.fault} (struck in round {wound.round})")
        for wound in self.wounds.slow:
            self._say(f"{now_s - self._begun_s:6.1f} s  healed {wound.heal_s:.1f} s after its end: {wound.fault}")
        self.wounds.slow.clear()
        if begun_s - self._told_s >= TELL_S:
            self._told_s = begun_s
            self._say(self._progress())
            if now_s - self._moved_s > LONG_PAUSE_S and supervised:
                self._say("\n".join(f"{'':10} {site.told()}" for site in self.sites.sites.values()))
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - begun_s)))

    def _slow_look(self, *, supervised: bool) -> None:
        stories = [self.oracles.look()]
        for name, site in self.sites.sites.items():
            if site.status is not None:
                stories.append(self.oracles.heard(name, site.news(limit=EVENTS_AT_ONCE)))
            if supervised and site.daemon_runs():
                stories.append(self.resources.look(site))
        for story in stories:
            if story:
                raise ViolationError(story)
        if supervised and self._slow_look_s - self._mended_s >= MEND_PAUSE_S:
            self._mended_s = self._slow_look_s
            self._mend_links()

    def _reap(self) -> None:
        for one in [one for one in self._links if one.done()]:
            self._links.remove(one)
            error = one.exception()
            if error is not None and not isinstance(error, NoDaemonError | RequestRefusedError):
                raise error  # an error in this program; that a struck daemon does not answer is none

    def _progress(self) -> str:
        training = [site for site in self.sites.sites.values() if site.trains()]
        terms = [site.status.term for site in self.sites.sites.values() if site.status is not None]
        epochs = [site.status.epoch for site in self.sites.sites.values() if site.status is not None]
        return (
            f"{time.monotonic() - self._begun_s:6.1f} s  -- {len(self.wounds.all)} faults, round {self.round}, "
            f"{len(training)} of {len(NAMES)} train, epoch {max(epochs, default=0)}, term {max(terms, default=0)}, "
            f"longest pause {self.longest_pause_s:.1f} s"
        )

    def _supervise(self) -> None:
        """Start again what ended, unless a fault keeps it down."""
        down = {Kind.KILL, Kind.STOP, Kind.LEAVE, Kind.DISK}
        held = {one.sites[0] for _, one in self._acting if one.kind in down}
        for name, site in self.sites.sites.items():
            future = self._starting.get(name)
            if future is not None:
                if not future.done():
                    continue
                del self._starting[name]
                if (error := future.exception()) is not None:
                    raise ViolationError(str(error)) if isinstance(error, LabError) else error
            self._note_ends(site)
            if name in held or (site.daemon_runs() and site.worker_runs()):
                continue
            if site.daemon_runs() and site.daemon is not None and site.daemon.pid in self._ended_by_us:
                continue  # it is leaving, and ends by itself
            self._starting[name] = self._pool.submit(self.sites.start, site)

    def _note_ends(self, site: Site) -> None:
        daemon, worker = site.daemon, site.worker
        if daemon is not None and daemon.poll() is not None and daemon.pid not in self._ended_by_us:
            raise ViolationError(f"the daemon of {site.name} ended by itself with {daemon.returncode}")
        if (
            worker is not None
            and worker.poll() not in (None, 0, -signal.SIGKILL)
            and worker.pid not in self._ended_by_us
        ):
            self._ended_by_us.add(worker.pid)
            last = site.worker_log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            self.worker_ends.append(f"{site.name}: {' '.join(last)}")

    def _mend_links(self) -> None:
        """An operator adds the links of the beginning again that went with a fault which is over."""
        struck = {name for _, fault in self._acting for name in fault.sites} | self._bad()
        for one, other in self._missing_links():
            if not self._links and not struck & {one, other}:
                far = self.sites.sites[other].identity.site
                self._ask(partial(self.sites.sites[one].client.change_link, far, add=True))

    def _missing_links(self) -> list[tuple[str, str]]:
        status = next((site.status for site in self.sites.sites.values() if site.status is not None), None)
        if status is None:
            return []
        names: dict[str, str] = {site.identity.site: name for name, site in self.sites.sites.items()}
        there = {frozenset((names.get(link.one), names.get(link.other))) for link in status.links}
        return [(one, other) for one, other, _, _ in LINKS if frozenset((one, other)) not in there]

    def _links_stand(self) -> bool:
        return not self._missing_links() and not self._links

    def _all_train(self) -> bool:
        return not self._starting and all(site.trains() and site.worker_runs() for site in self.sites.sites.values())

    def _wait(self, condition: Callable[[], bool], what: str, *, supervised: bool = True) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > end_s:
                raise ViolationError(f"not within {LIMIT_S:g} s: {what}")
            self._look(supervised=supervised)
            if supervised:
                for fault in [fault for end, fault in self._acting if end <= time.monotonic()]:
                    self._undo(fault)  # a full disk takes its time
