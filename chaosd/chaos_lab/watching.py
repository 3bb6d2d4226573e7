"""What is seen of a lab while it runs: the sites' status, one list of events, and the times of completed rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from chaos_lab.errors import LabError
from chaos_lab.processes import Processes
from chaos_lab.site import LabSite
from chaosd.api.status import EventRecord, Status

EVENTS_KEPT = 5_000
QUIET_KINDS = frozenset({"pause", "resume", "worker", "link-down", "source", "transfer"})
"""Told by every site for itself; the table shows what the scheduler tells once for all."""


@dataclass
class Incident:
    """One action: what was done, and how long until it showed. `asked`: the site that it was asked for while the lab
    ran; empty: it is of the scenario."""

    at_s: float
    text: str
    duration_s: float | None = None
    outcome: str = ""
    asked: str = ""


@dataclass
class Watch:
    """`look` is called some times a second; everything else reads what it saw."""

    processes: Processes
    begun_s: float = field(default_factory=time.monotonic)
    training_since_s: float | None = None
    events: list[tuple[str, EventRecord]] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    round: int = 0
    held_s: float = 0.0
    """So long the run was kept for somebody who looks: it does not count against the scenario's limit."""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun_s

    @property
    def training_s(self) -> float:
        """Seconds since the first round was completed."""
        return 0.0 if self.training_since_s is None else time.monotonic() - self.training_since_s

    def look(self) -> None:
        """Ask every daemon. Raises LabError when one ended unexpectedly, or the scenario takes too long."""
        for site in self.processes.sites.values():
            if not site.daemon_runs() or "daemon" in site.stopped:
                site.status = None
                continue
            status = site.ask()
            if status is not None:
                self.round = max(self.round, status.round)
            for event in site.news():
                if len(self.events) < EVENTS_KEPT:
                    self.events.append((site.name, event))
        if self.round > 0 and self.training_since_s is None:
            self.training_since_s = time.monotonic()
        ended = self.processes.unexpected_end()
        if ended is not None:
            raise LabError(f"a process of {ended.name} ended unexpectedly\n{ended.tail()}")
        if self.elapsed_s - self.held_s > self.processes.scenario.limit_s:
            tails = "\n".join(site.tail(8) for site in self.processes.sites.values())
            raise LabError(f"not done within the scenario's limit of {self.processes.scenario.limit_s:g} s\n{tails}")

    def running(self) -> list[LabSite]:
        return [site for site in self.processes.sites.values() if site.status is not None]

    def everybody_trains(self, *, beyond_round: int = -1) -> bool:
        """All sites that should run are training members and have done a round after `beyond_round`."""
        sites = [site for site in self.processes.sites.values() if site.expected]
        return bool(sites) and all(site.trains(beyond_round=beyond_round) for site in sites)

    def told_once(self) -> list[tuple[str, EventRecord]]:
        """Events of the negotiations, as their scheduler recorded them, by time."""
        chosen = [(name, event) for name, event in self.events if event.kind not in QUIET_KINDS]
        return sorted(chosen, key=lambda one: one[1].at_unix_s)

    def next_round_after(self, struck_unix_s: float, survivors: list[LabSite]) -> float | None:
        """Seconds from a fault until the last survivor completed a round again: the end of the longest gap that begins
        before, or soon after, the fault. None while some survivor has not completed two rounds since."""
        worst = 0.0
        for site in survivors:
            times = [entry["at_unix_s"] for entry in site.rounds()]
            after = [at_s for at_s in times if at_s > struck_unix_s]
            if len(after) < 3:
                return None
            before = max((at_s for at_s in times if at_s <= struck_unix_s), default=struck_unix_s)
            gaps = [(later - earlier, later) for earlier, later in zip([before, *after], after, strict=False)]
            worst = max(worst, max(gaps)[1] - struck_unix_s)
        return worst


def why_needed(site: LabSite, watch: Watch) -> str:
    """What the run would lack without a site: the votes of a majority, or anybody who trains."""
    others = [one for one in watch.processes.sites.values() if one is not site and one.trains()]
    if not others:
        return "no other site trains: the state would be lost"
    newest: Status = max((one.status for one in others if one.status is not None), key=lambda status: status.epoch)
    voters = {one.site for one in newest.sites if one.voter}
    left = voters & {one.identity.site for one in others}
    if 2 * len(left) > len(voters):
        return ""
    return f"of {len(voters)} {'vote' if len(voters) == 1 else 'votes'} {len(left)} would be left, no majority"
