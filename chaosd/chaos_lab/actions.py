"""Carries out the script of a scenario: each action is started at its time, and watched until its effect shows.

An action is a generator: it does something, then yields until what it did is seen in the sites' own status; its
duration is measured on the way. The lab's loop drives it between two looks.
"""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

from chaos_lab.errors import LabError
from chaos_lab.processes import Processes
from chaos_lab.scenario import ActionSpec, LinkSpec
from chaos_lab.site import LabSite
from chaos_lab.watching import Incident, Watch, why_needed
from chaos_protocols.scheduler.admission import LINK_IS_CHANGING, NO_SUCH_LINK
from chaosd.api.client import LocalClient
from chaosd.api.status import Outcome

COMES_BACK_S = 20.0
"""A link that was cut is redialled and agreed on anew; so long it is waited for before it is said that it is none."""

Steps = Generator[None, None, str]
"""Yields until done; returns what came of it."""


class Script:
    """The actions of a scenario, one after the other, and between them those that somebody asks for; `done` when the
    last has shown its effect. `played`: somebody asked for something, so that the scenario's own actions may have lost
    their subject."""

    def __init__(self, processes: Processes, watch: Watch) -> None:
        self._processes, self._watch = processes, watch
        self._left = list(processes.scenario.actions)
        self._asked: deque[ActionSpec] = deque()
        self.played = False
        self._running: tuple[Steps, Incident] | None = None
        self._finished_s = time.monotonic()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="lab action")
        self._cuts: list[tuple[str, str]] = []
        self.done = False

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def over(self) -> bool:
        """Nothing of the scenario is left to be done."""
        return not self._left and self._running is None

    def ask(self, action: ActionSpec) -> None:
        """Somebody wants this as well, as soon as no other action is under way."""
        self.played = True
        self._asked.append(action)

    def step(self) -> None:
        """Go on with the running action, or begin the next if its time has come."""
        if self._running is not None:
            steps, incident = self._running
            try:
                next(steps)
            except StopIteration as stop:
                incident.outcome = str(stop.value)
                if incident.duration_s is None:
                    incident.duration_s = self._watch.elapsed_s - incident.at_s
                self._running, self._finished_s = None, time.monotonic()
            return
        if self._asked:
            self._begin(self._asked.popleft(), asked=True)
        elif not self._left:
            enough = self._watch.round >= self._processes.scenario.stop_at_round
            self.done = enough and self._watch.everybody_trains()
        elif self._is_due(self._left[0]):
            self._begin(self._left.pop(0), asked=False)

    def _begin(self, action: ActionSpec, *, asked: bool) -> None:
        self.done = False
        text = action.say or f"{action.do} {action.subject}"
        incident = Incident(at_s=self._watch.elapsed_s, text=text, asked=action.subject if asked else "")
        self._watch.incidents.append(incident)
        if why := self._moot(action):
            incident.outcome, self._finished_s = f"not done: {why}", time.monotonic()
        else:
            self._running = (self._perform(action, incident), incident)

    def _moot(self, action: ActionSpec) -> str:
        """Why an action has lost its subject, by what somebody asked for before; empty: it has not."""
        if not self.played or action.do in ("join", "restart"):
            return ""
        sites = [self._processes.sites[name] for name in ([action.site] if action.site else action.sites)]
        away = [site.name for site in sites if not site.daemon_runs()]
        if away:
            return f"{' and '.join(away)} does not run"
        # when it was asked for, another one that was asked for before had not been killed yet
        return why_needed(sites[0], self._watch) if action.do == "kill" and action.what != "worker" else ""

    def _is_due(self, action: ActionSpec) -> bool:
        watch = self._watch
        if watch.training_since_s is None or time.monotonic() - self._finished_s < action.after_s:
            return False
        if action.at_round is not None and watch.round < action.at_round:
            return False
        return action.at_s is None or watch.training_s >= action.at_s

    def _perform(self, action: ActionSpec, incident: Incident) -> Steps:
        site = self._processes.sites[action.site] if action.site is not None else None
        match action.do:
            case "join" | "restart":
                assert site is not None
                return self._join(site)
            case "kill":
                assert site is not None
                return self._kill(site, action, incident)
            case "stop":
                assert site is not None
                return self._stop(site, action, incident)
            case "continue":
                assert site is not None
                return self._continue(site, action)
            case "leave":
                assert site is not None
                return self._leave(site, incident)
            case "link add" | "link remove":
                return self._link(action, incident)
            case "partition" | "cut":
                return self._cut(action)
            case "heal":
                return self._heal(action)
            case "shape":
                return self._shape(action)

    # -- the actions

    def _join(self, site: LabSite) -> Steps:
        self._processes.start(site)
        yield
        while not site.trains():
            yield
        return f"a member from round {site.status.round if site.status else '?'} on"

    def _kill(self, site: LabSite, action: ActionSpec, incident: Incident) -> Steps:
        survivors = [other for other in self._watch.running() if other is not site or action.what == "worker"]
        struck_unix_s = time.time()
        self._processes.kill(site, action.what)
        yield
        while (took_s := self._watch.next_round_after(struck_unix_s, survivors)) is None:
            yield
        incident.duration_s = took_s
        told = f"the others completed their next round {took_s * 1000:.0f} ms after it"
        if action.back_after_s is not None:
            yield from self._come_back(site, action.back_after_s)
            told += f"; {site.name} is back as a joiner"
        return told

    def _come_back(self, site: LabSite, after_s: float) -> Steps:
        """What systemd or an orchestrator does at an institution: start again what ended."""
        back_s = time.monotonic() + after_s
        while time.monotonic() < back_s:
            yield
        yield from self._join(site)
        return ""

    def _stop(self, site: LabSite, action: ActionSpec, incident: Incident) -> Steps:
        survivors = [other for other in self._watch.running() if other is not site or action.what == "worker"]
        struck_unix_s = time.time()
        self._processes.signal(site, action.what, signal.SIGSTOP)
        yield
        while (took_s := self._watch.next_round_after(struck_unix_s, survivors)) is None:
            yield
        incident.duration_s = took_s
        return f"the others completed their next round {took_s * 1000:.0f} ms after it"

    def _continue(self, site: LabSite, action: ActionSpec) -> Steps:
        self._processes.signal(site, action.what, signal.SIGCONT)
        before = self._watch.round  # until it hears of its removal, it takes itself for a member: a new round proves it
        yield
        while not site.trains(beyond_round=before):
            yield
        return "a training member again"

    def _leave(self, site: LabSite, incident: Incident) -> Steps:
        """Ctrl+C in the site's script."""
        site.expected = False
        before = self._watch.round
        self._processes.signal(site, "worker", signal.SIGINT)
        yield
        while site.daemon_runs():
            yield
        incident.duration_s = self._watch.elapsed_s - incident.at_s
        while site.worker_runs():  # it writes its report; a later join must not meet it
            yield
        if site.daemon is None or site.daemon.returncode != 0:
            raise LabError(f"the daemon of {site.name} did not end well after the leave\n{site.tail()}")
        while self._watch.round < before + 3:
            yield
        return "left; the others go on"

    def _link(self, action: ActionSpec, incident: Incident) -> Steps:
        one, other = (self._processes.sites[name] for name in action.sites)
        network, add = self._processes.network, action.do == "link add"
        exists = any(set(pair) == {one.name, other.name} for pair in network.links)
        if add and not (exists and action.rate_mbit is None):
            network.add_link(_link_of(action))
        comes_back = {LINK_IS_CHANGING, NO_SUCH_LINK} if exists and not add else {LINK_IS_CHANGING}
        outcome, until_s = None, time.monotonic() + COMES_BACK_S
        while outcome is None or (outcome.reason in comes_back and time.monotonic() < until_s):
            answer = self._pool.submit(_change_link, one.client, other.identity.site, add)
            while not answer.done():
                yield
            outcome = answer.result()
        incident.duration_s = outcome.duration_s
        if not outcome.done and self.played:
            return f"not done: {outcome.reason}"  # without the site that was killed, the overlay needs this link
        if not outcome.done:
            raise LabError(f"{action.do} {action.subject}: {outcome.reason}")
        if not add and exists:
            network.remove_link(one.name, other.name)
        return outcome.reason

    def _cut(self, action: ActionSpec) -> Steps:
        """`partition` cuts the named sites off from all others, both ways; `cut` one link, or one direction of it.
        Silently: what is sent does not arrive, and nobody is told."""
        network, before = self._processes.network, self._watch.round
        if action.do == "cut":
            cuts = [(action.sites[0], action.sites[1])]
        else:
            inside = set(action.sites)
            cuts = [(one, other) for one, other in network.pairs if (one in inside) != (other in inside)]
        for one, other in cuts:
            network.cut(one, other, one_way=action.one_way)
        self._cuts += cuts
        yield
        while self._watch.round < before + 5:
            yield
        return "the others go on" if action.do == "cut" else "the larger part goes on"

    def _heal(self, action: ActionSpec) -> Steps:
        """Ends every cut, or those between two sites."""
        network, before = self._processes.network, self._watch.round
        ended = [cut for cut in self._cuts if not action.sites or set(cut) == set(action.sites)]
        self._cuts = [cut for cut in self._cuts if cut not in ended]
        known = [set(pair) for pair in network.pairs]  # a link that was removed meanwhile is none
        for one, other in ended:
            if {one, other} in known:
                network.heal(one, other)
        yield
        while not self._watch.everybody_trains(beyond_round=before):
            yield
        return "everybody trains again"

    def _shape(self, action: ActionSpec) -> Steps:
        link, (one, other) = _link_of(action), action.sites
        rate_mbit = math.inf if link.rate_mbit is None else link.rate_mbit
        self._processes.network.set_link(
            one, other, rate_mbit=rate_mbit, latency_ms=link.latency_ms, loss=link.loss, one_way=action.one_way
        )
        yield
        return "shaped"


def _link_of(action: ActionSpec) -> LinkSpec:
    one, other = action.sites
    return LinkSpec(between=(one, other), rate_mbit=action.rate_mbit, latency_ms=action.latency_ms, loss=action.loss)


def _change_link(client: LocalClient, site: str, add: bool) -> Outcome:
    return client.change_link(site, add=add)
