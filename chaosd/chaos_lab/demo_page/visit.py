"""What somebody who looks at the demo may have done, decided on the lab's own loop between two looks at the sites.

Only `kill` and `join` of the sites that this lab has itself, by their names in the scenario. A kill that would leave
the run without a majority of its votes is refused: it would stand, and the demo with it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Literal

from chaos_lab.actions import Script
from chaos_lab.demo_page.view import DemoView, SiteView, view_of
from chaos_lab.scenario import ActionSpec
from chaos_lab.site import LabSite
from chaos_lab.watching import Watch, why_needed
from chaosd.api.status import Outcome

What = Literal["kill", "join", "finish"]

HOLD_MAX_S = 900.0
"""So long the sites train on for somebody who has the page open and does not press the button that ends it."""
SAID = {"kill": "daemon and worker are killed (SIGKILL), by the viewer", "join": "started by the viewer"}
AWAY_S = 5.0
"""A page that was reloaded is back within this."""


@dataclass
class Wish:
    """Asked on the page. `site`: a name of the scenario; empty with `finish`."""

    what: What
    site: str
    answer: Future[Outcome] = field(default_factory=Future)

    def settle(self, reason: str, *, done: bool) -> None:
        """Nothing happens where who asked has given up waiting."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(Outcome(done=done, reason=reason, duration_s=0.0))


class Visit:
    """The wishes, from whichever thread, and what becomes of them; `stays`: keep the sites running for somebody."""

    def __init__(self) -> None:
        self.wishes: SimpleQueue[Wish] = SimpleQueue()
        self._finished = False
        self._held_since_s: float | None = None
        self._looked_s = -AWAY_S

    def step(self, watch: Watch, script: Script, *, viewers: int) -> DemoView:
        """Between two looks: take the wishes, and say what is to be shown."""
        now_s = time.monotonic()
        if viewers:
            self._looked_s = now_s
        while True:
            try:
                wish = self.wishes.get_nowait()
            except Empty:
                break
            why = self._take(wish, watch, script)
            wish.settle(why or "as soon as nothing else is under way", done=not why)
        if script.done and self.stays(now_s):
            self._held_since_s = self._held_since_s or now_s
            watch.held_s = now_s - self._held_since_s
        sites = [self._seen(site, watch) for site in watch.processes.sites.values()]
        return view_of(watch, sites, stage="training", may_finish=script.over and not self._finished)

    def stays(self, now_s: float) -> bool:
        """Somebody looks, has not said that it is enough, and it has not lasted too long."""
        held_s = 0.0 if self._held_since_s is None else now_s - self._held_since_s
        return not self._finished and now_s - self._looked_s < AWAY_S and held_s < HOLD_MAX_S

    def refuse_all(self, why: str) -> None:
        """Nothing can be done any more."""
        while not self.wishes.empty():
            self.wishes.get_nowait().settle(why, done=False)

    def _take(self, wish: Wish, watch: Watch, script: Script) -> str:
        """Why it cannot be; empty: it is under way."""
        if wish.what == "finish":
            self._finished = script.over
            return "" if script.over else "the demo's own script goes on"
        site = watch.processes.sites.get(wish.site)
        if site is None:
            return f"there is no site {wish.site[:32]!r}"
        why = why_not(wish.what, site, watch)
        if not why:
            label = site.spec.label or site.name
            script.ask(ActionSpec(do=wish.what, site=site.name, say=f"{label}: {SAID[wish.what]}"))
        return why

    def _seen(self, site: LabSite, watch: Watch) -> SiteView:
        return SiteView(
            name=site.name,
            label=site.spec.label or site.name,
            site=site.identity.site,
            state=_state(site),
            round=None if site.status is None else site.status.round,
            phase=None if site.status is None else site.status.worker.phase,
            runs=site.daemon_runs(),
            why_not=why_not("kill" if site.daemon_runs() else "join", site, watch),
        )


def why_not(what: What, site: LabSite, watch: Watch) -> str:
    """Why a site cannot be killed, or started, now; empty: it can."""
    if watch.training_since_s is None:
        return "training has not begun"
    if what == "join":
        return f"{site.name} runs already" if site.daemon_runs() or site.worker_runs() else ""
    if not site.trains():
        return f"{site.name} does not train" if not site.daemon_runs() else f"{site.name} is on its way in, or out"
    return why_needed(site, watch)


def _state(site: LabSite) -> str:
    if site.status is not None:
        return site.status.state
    if site.daemon_runs():
        return "starting"
    return "killed" if site.killed else "left" if site.started_once else "not started"
