"""Plays a scenario file: its commands on a simulated world, and the trace of what the sites recorded.

    sites a b:a c:a,b      a founds; b knows a; c knows a and b; goes on when all train and vote; tells nothing
    found a b:a            the same, told from the beginning, and not waited for
    patient                before the sites: a round waits for a script for ever
    encoded                rounds travel in an encoding that loses something
    memory-checkpoints 1   before the sites: each daemon keeps its worker's state of every round in memory
    checkpoints 5          before the sites: each daemon writes its worker's state to its disk every five rounds
    disk SITE SECONDS      reading or writing a checkpoint takes so long there
    empty SITE             its checkpoints are gone
    patience SECONDS       before the sites: restore_wait_s
    recover SITE OTHER NAME [ROUND]      the operator's request NAME at SITE, see `operating`
    give-up SITE OTHER,... and follow SITE OTHER: a run without a majority of its voters, see `operating`
    rotate SITE OTHER                    SITE gets another key, OTHER approves it, see `operating`
    add d:b,c              d exists, and knows b and c; `start d` starts its daemon and its worker
    found-again z:a,b      z founds a second run of the name, and dials a and b
    copy SITE              its machine is copied while it runs, and the copy, with the same key, is started
    run 3                  three seconds pass
    floor N                rounds wait while fewer members count; before `sites`
    kill|daemon|worker|stop|go|start|leave|fast-leave|model|nan|unseen-nan|pause|resume SITE
    cut|heal|oneway|link|unlink|reset|slow ONE OTHER, split a,b c,d, heal-all, load ONE OTHER SECONDS,
    mute|unmute|hold|release|stall|flow|abort|spoil|wrong-result|hang|wake SITE, hold SITE OTHER, pace SITE SECONDS,
    late ONE OTHER SECONDS, prompt ONE OTHER, narrow|widen ONE OTHER, forget ONE OTHER control|averaging|states
    load: bulk bytes fill the link, and nothing else arrives until it is healed; mute: nothing that it sends arrives;
    hold: its bulk messages, to all or to one other, wait until `release`; stall, abort: as a source; spoil: a wrong
    byte in each of the next three blocks that it sends, and wrong-result: in the next chunk of a result; hang: its
    worker does nothing and says nothing until `wake`, a new one does; late: what ONE hands on to OTHER for a third
    comes later than what is said after it, until `prompt`; narrow: large packets vanish between them, so no bulk passes
    and no link comes up; forget: nothing arrives any more on this connection of their present link
    entries SITE SECONDS   what SITE, as the scheduler, had agreed on lately took so long
    ask SITE link|unlink OTHER NAME      the user's request NAME, so that it can be made twice
    replay N               N messages that were delivered lately are delivered once more
    again ONE OTHER THIRD  the heartbeats that OTHER lately got from ONE come again, by THIRD, one after the other
    daemon kills the daemon and leaves its worker; worker the other way round; `scheduler` stands for whoever leads
    when|before ...        at an exact moment, see `moments`
    expect|never|until|within ...        what must come to hold, or never happens from here on, see `expectations`
    detail                 the trace says how rounds were resolved, and who sent state to whom

The trace is made to stay the same as long as the story does: it has no times, sizes, numbers of rounds or terms. After
each command comes what the sites saw (links down, pauses), then what the scheduler decided, in its order and told by
`scheduler` whoever that is, then what came of it at the sites. A scheduler's own end is told by its site.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.simulation.expectations import Expectations
from tests.simulation.moments import Moments
from tests.simulation.operating import follow, give_up, recover, rotate
from tests.simulation.paths import KINDS, Paths
from tests.simulation.waiting import Waiting
from tests.simulator.faults import begin
from tests.simulator.node import Node
from tests.simulator.strays import copy_machine, found_again
from tests.simulator.world import World

from chaos_protocols import effects, events
from chaos_protocols.names import VOTERS_MAX
from chaos_protocols.scheduler.pace import COMMITS_TIMED
from chaos_protocols.settings import CheckpointSettings, SiteSettings
from chaos_protocols.state.transfer.sources import WRONG_BLOCKS_MAX
from chaos_protocols.wire.control import Heartbeat

SEED = 1
COMPUTE_RANGE_S = (0.05, 0.1)
QUIET_S = 0.7
"""A story is at rest when nothing was recorded for so long: longer than every pause between two steps of one change."""
QUIET_MAX_S = 6.0
OF_THE_SCHEDULER = ("election", "scale-in", "scale-out", "resolve", "restore-point", "connect-link", "disconnect-link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One line of the story: who said it, what kind of record it is, and its full text."""

    speaker: str
    node: str
    kind: str
    text: str


class Stage:
    """See the module."""

    def __init__(self, *, seed: int = SEED) -> None:
        self.world = World(seed, settings=SiteSettings(keep=CheckpointSettings(checkpoint="off")))
        self.world.compute_range_s = COMPUTE_RANGE_S
        self.world.planner.trees = 1  # who is whose parent is the story's affair; seeds draw several trees
        self.told: list[Told] = []
        self.detail = False
        self._silent = False
        self._printed = 0
        self.moments = Moments(self)
        self.expectations = Expectations(self)
        self.world.recorded = self._recorded  # type: ignore[method-assign]
        self.world.dismissed = self._dismissed  # type: ignore[method-assign]
        self._pace_s: dict[str, float] = {}
        self.waiting, self.paths = Waiting(), Paths(self.world)
        drawn_s = self.world.compute_s
        self.world.compute_s = lambda site: self._pace_s.get(site) or drawn_s(site)  # type: ignore[method-assign]

    # -- the story

    def play(self, commands: list[str]) -> list[str]:
        trace: list[str] = []
        for line in commands:
            try:
                self.command(line)
            except Exception as error:
                error.add_note(f"in the command '{line}', after:\n" + "\n".join([*trace, *self._news()]))
                raise
            trace += [f"> {line}", *self._news()]
        self.expectations.end()
        return trace

    def tell(self, node: Node, kind: str, text: str) -> None:
        leads = node.machine is not None and node.machine.scheduler.leading
        speaker = "scheduler" if leads and kind in OF_THE_SCHEDULER else node.name
        self.told.append(Told(speaker=speaker, node=node.name, kind=kind, text=self._named(text)))
        self.world.story.append(f"{self.world.now_s:9.3f} {node.name}: {kind} {text}")
        self.expectations.heard(self.told[-1])

    def executed(self, node: Node, effect: Any) -> None:
        """Of all effects, a story tells a user's answers and that a daemon ends."""
        if isinstance(effect, effects.AnswerRequest) and effect.request:
            done = "done" if effect.done else "refused"
            self.tell(node, "answer", f"{effect.request}: {done}, {effect.reason}")
        elif isinstance(effect, effects.StopDaemon):
            self.tell(node, "ends", effect.reason)

    def _named(self, text: str) -> str:
        return re.sub(r"\b\d\d([a-z])\b", r"\1", text)

    def _recorded(self, node: Node, effect: effects.Record) -> None:
        if effect.kind in ("worker", "checkpoint"):
            return
        parts = (effect.subject, effect.outcome, f"({effect.cause})" if effect.cause else "", effect.reason)
        self.tell(node, effect.kind, " ".join(part for part in parts if part))

    def _dismissed(self, node: Node, message: Any) -> None:
        self.tell(node, "worker", f"dismissed: {message.reason}")

    def _news(self) -> list[str]:
        news, self._printed = self.told[self._printed :], len(self.told)
        if self._silent:
            self._silent = False
            return []
        seen: dict[tuple[str, str], set[str]] = {}
        decided: list[str] = []
        came: list[str] = []
        for one in news:
            text = self._timeless(one)
            if one.kind in ("link-down", "pause"):
                seen.setdefault((one.kind, text), set()).add(one.speaker)
            elif one.speaker == "scheduler" or one.kind == "!!":
                decided.append(f"{one.speaker}: {one.kind} {text}")
            else:
                came.append(f"{one.speaker}: {one.kind} {text}")
        said = sorted((kind, " ".join(sorted(who)), text) for (kind, text), who in seen.items())
        lines = [*(f"{who}: {kind} {text}" for kind, who, text in said), *decided, *sorted(came)]
        return [line.rstrip() for line in lines]

    def _timeless(self, one: Told) -> str:
        text = one.text
        if one.kind == "resolve" and not self.detail:
            return "the running round (" + text.split("(", 1)[1].split(")", 1)[0] + ")"
        if one.kind == "resume":
            return ""
        if one.kind == "election":
            done = one.text.split()[1] == "done"
            return "done: elected by a majority" if done else "no scheduler now"
        if one.kind == "link-down":
            text = re.sub(r"\((silent for|does not hear us).*", "(silence)", text)
            text = re.sub(r"\(its control connection .* bulk bytes move", "(control silent, bulk moves", text)
            text = re.sub(r"\(bulk stream \d+: .*`chaosd doctor` tries", "(bulk stands still", text)
            return text.replace(" the link to this site is down", "")
        if not self.detail:
            text = re.sub(r"; (links to|planned from) .*", "", text)
        text = re.sub(r"\d+\.\d+ s", "N s", text)
        text = re.sub(r"\d[\d,]* bytes of (round \d+)", r"the state of \1", text)
        text = re.sub(r"( |; )([a-z]) \d[\d,]*(?=;|$)", r"\1\2", text)
        text = re.sub(r"rounds \d+ to \d+ are", "the rounds after it are", text)
        numbers = sorted({int(number) for number in re.findall(r"(?:round|going on with|held only) (\d+)", text)})
        for number in numbers:
            after = number - numbers[0]
            text = re.sub(rf"(round|going on with|held only) {number}\b", rf"\1 R{f'+{after}' if after else ''}", text)
        return text

    # -- time

    def rest(self) -> None:
        """Go on until nothing is recorded any more."""
        end_s, known = self.world.now_s + QUIET_MAX_S, -1
        while known != len(self.told) and self.world.now_s < end_s:
            known = len(self.told)
            self.world.run(self.world.now_s + QUIET_S)

    # -- the commands

    def node(self, name: str) -> Node:
        if name == "scheduler":
            return self.scheduler()
        if name == "it":
            assert self.moments.it is not None, "no moment has come"
            return self.moments.it
        return self.world.node(name)

    def scheduler(self) -> Node:
        leaders = [node for node in self.world.nodes.values() if node.machine and node.machine.scheduler.leading]
        assert leaders, "nobody is the scheduler"
        return max(leaders, key=lambda node: node.machine.term if node.machine else 0)

    def command(self, line: str) -> None:
        verb, *names = line.split()
        match verb:
            case "when" | "before":
                self.moments.add(line)
            case "expect" | "never" | "until" | "within":
                self.expectations.check(line)
            case "detail":
                self.detail = True
            case "floor":
                self.world.floor_sites = int(names[0])
            case "patient":
                self.world.settings = replace(self.world.settings, straggler_timeout=0.0)
            case "encoded":
                self.world.lossy = True
            case "memory-checkpoints":
                self._keep(memory_checkpoint_every_rounds=int(names[0]))
            case "checkpoints":
                self._keep(checkpoint="fixed", checkpoint_every_rounds=int(names[0]))
            case "patience":
                self.world.settings = replace(self.world.settings, restore_wait_s=float(names[0]))
            case "recover":
                recover(self.world, *names)
            case "rotate":
                rotate(self.world, *names)
            case "give-up":
                give_up(self.world, *names)
            case "follow":
                follow(self.world, *names)
            case "disk":
                self.node(names[0]).keeper.disk_range_s = (float(names[1]), float(names[1]))
            case "sites" | "found":
                self._found(names, wait=verb == "sites")
            case "add":
                self._add(names[0])
            case "found-again":
                name, _, peers = names[0].partition(":")
                found_again(self.world, name, tuple(peers.split(",")))
            case "copy":
                copy_machine(self.world, self.node(names[0]))
            case "run":
                self.world.run(self.world.now_s + float(names[0]))
            case "replay":
                self._replay(int(names[0]))
            case "again":
                self._again(*(self.node(name) for name in names))
            case "split":
                self.paths.split([[self.node(name).site for name in group.split(",")] for group in names])
            case _ if verb in Paths.VERBS:
                words = [name if name in KINDS or name[0].isdigit() else self.node(name).site for name in names]
                getattr(self.paths, verb.replace("-", "_"))(*words)
            case "ask":
                self._ask(self.node(names[0]), names[1] == "link", self.node(names[2]), names[3])
            case "entries":
                for _ in range(COMMITS_TIMED):
                    self.node(names[0]).machine.scheduler.pace.entry_took(float(names[1]))  # type: ignore[union-attr]
            case "pace":
                self._pace_s[self.node(names[0]).site] = float(names[1])
            case "link" | "unlink":
                node, other = self.node(names[0]), self.node(names[1])
                self._ask(node, verb == "link", other, f"{verb}-{node.name}-{other.name}")
            case "hold":
                self.waiting.hold(*(self.node(name).site for name in names))
            case _:
                for name in names:
                    self._at(verb, self.node(name))

    def _keep(self, **changes: Any) -> None:
        settings = self.world.settings
        self.world.settings = replace(settings, keep=replace(settings.keep, **changes))

    def _found(self, names: list[str], *, wait: bool) -> None:
        for number, name in enumerate(names):
            self._add(name, founder=number == 0)
        for node in self.world.nodes.values():
            begin(node)
        if wait:
            sites = " ".join(name.partition(":")[0] for name in names)
            self.expectations.check(f"expect training {sites}")
            self.expectations.check(f"expect voters-count {min(VOTERS_MAX, (len(names) - 1) // 2 * 2 + 1)}")
            self.expectations.check("expect rounds-go-on")
            self._silent = True

    def _add(self, name: str, *, founder: bool = False) -> None:
        own, _, known = name.partition(":")
        self.world.add(own, founder=founder, peers=tuple(known.split(",")) if known else (), min_sites=1)
        self.moments.watch(self.world.node(own))
        self.waiting.watch(self.world.node(own))

    def _replay(self, count: int) -> None:
        rng = random.Random(self.world.seed)
        for _ in range(count):
            self.world.replay(rng)

    def _again(self, one: Node, other: Node, third: Node) -> None:
        words = [one.message for one in self.world.delivered if one.site == other.site and one.kind == "control"]
        beats = [word for word in words if word.source == one.site and isinstance(word.message, Heartbeat)]
        for number, word in enumerate(beats):
            event = events.EnvelopeReceived(neighbour=third.site, envelope=word)  # type: ignore[arg-type]
            other.later(number * self.world.settings.beat_s, partial(other.handle, event))

    def _ask(self, node: Node, add: bool, other: Node, request: str) -> None:
        asked = events.LinkChangeRequested(request=request, other=other.site, add=add)  # type: ignore[arg-type]
        node.handle(asked)

    def _at(self, verb: str, node: Node) -> None:
        doing: dict[str, Callable[[], object]] = {
            "kill": node.kill,
            "daemon": lambda: node.kill(worker_too=False),
            "worker": node.kill_worker,
            "stop": node.stop,
            "go": node.go_on,
            "start": lambda: self._start(node),
            "leave": lambda: node.handle(events.LeaveRequested(request="leave", reason="its user left")),
            "fast-leave": lambda: node.handle(
                events.LeaveRequested(request="leave", reason="its worker ended", contributes=False)
            ),
            "stall": lambda: node.to_bulk(lambda bulk: bulk.stall(True)),
            "flow": lambda: node.to_bulk(lambda bulk: bulk.stall(False)),
            "spoil": lambda: node.to_bulk(lambda bulk: bulk.spoil(WRONG_BLOCKS_MAX)),
            "wrong-result": lambda: node.to_bulk(lambda bulk: bulk.spoil_results(1)),
            "abort": lambda: node.to_bulk(lambda bulk: bulk.abort()),
            "model": lambda: setattr(node.odd, "others", 1),
            "nan": lambda: setattr(node.odd, "skips", 1),
            "unseen-nan": lambda: setattr(node.odd, "taints", 1),
            "empty": node.keeper.files.clear,
            "release": lambda: self.waiting.release(node),
            "hang": lambda: self.waiting.hang(node),
            "wake": lambda: self.waiting.wake(node),
            "pause": node.odd.pause,
            "resume": node.odd.wake,
        }
        if verb not in doing:
            raise ValueError(f"unknown command '{verb}'")
        doing[verb]()

    def _start(self, node: Node) -> None:
        if node.alive:
            if node.worker is None:
                node.start_worker()
            return
        begin(node)
        if node.worker is None:
            node.start_worker()


def commands_of(story: str) -> list[str]:
    """The commands of a scenario file: what stands above `----`, without comments."""
    head = story.partition("----\n")[0]
    return [line for line in head.splitlines() if line and not line.startswith("#")]
