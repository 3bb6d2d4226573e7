"""What a story must come to: `expect FACT`, waited for; `never FACT`, from that line to the end of the story.

    expect members a b c         these know exactly these members, and nobody is a learner
    expect training a b          their workers compute; expect idle c: it does not
    expect rounds-go-on          three more rounds are done
    expect rounds-stand          nobody does a round for 3 s; expect rounds-stand c d: these two do none
    expect same-state            all workers that train have the same state of the same round
    expect paused b "text"       b says so, and why; expect running b: it is not paused
    expect scheduler a | b       one of these leads, and they that are alive know it; expect no-scheduler
    expect left c | failed c     how the roster remembers that c went; expect outside d: not in the roster
    expect link a b | no-link a b | voters a b c | voters-count 7 | ended c | moments
    expect told KIND "text"      a record so far, of the scheduler or of anybody; `told 2 KIND` at least two of them;
                                 expect not-told KIND "text": none so far, at once
    expect answer a NAME done|refused "text"       the answer to a user's request
    expect no-failure-recorded c                   nobody ever recorded that c failed
    never told KIND "text", never paused a, never training a, never scheduler a, never two-schedulers,
    never spoiled-results        nobody holds a result that is not what its digest says

An expectation waits until the story is at rest, so that what belongs together is told together; `until FACT` goes on at
once, and so does `within SECONDS FACT`, which waits no longer than that.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulator.contents import vector_digest

if TYPE_CHECKING:
    from tests.simulation.stage import Stage, Told
    from tests.simulator.node import Node

LIMIT_S = 30.0
"""So long may it take until something that is expected holds: many times the longest change of a small run."""
STAND_S = 3.0


class Expectations:
    """See the module."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._forbidden: list[tuple[str, list[str]]] = []

    def check(self, line: str) -> None:
        verb, what, *words = shlex.split(line)
        limit_s = LIMIT_S
        if verb == "within":
            limit_s, (what, *words) = float(what), words
        if verb == "never":
            self._forbidden.append((what, words))
            return
        if what == "rounds-go-on":
            self._rounds_go_on(line)
        elif what == "rounds-stand":
            self._rounds_stand(words)
        elif verb in ("until", "within"):
            self._wait(line, lambda: self._holds(what, words), limit_s)
        elif what == "not-told":
            why = self._holds(what, words)
            assert not why, f"'{line}': {why}"
        elif what == "same-state":
            self._wait(line, self._same_state)
        else:
            self._wait(line, lambda: self._holds(what, words))
            self._stage.rest()
            why = self._holds(what, words)
            assert not why, f"'{line}' held, but not for long: {why}"
        self.look()

    def _wait(self, line: str, wrong: Callable[[], str], limit_s: float = LIMIT_S) -> None:
        world = self._stage.world
        end_s = world.now_s + limit_s
        while wrong() and world.now_s < end_s:
            world.run(world.now_s + 0.02)
            self.look()
        assert not wrong(), f"'{line}' does not come true within {limit_s:g} s: {wrong()}"

    def _rounds_go_on(self, line: str) -> None:
        oracles = self._stage.world.oracles
        due = oracles.rounds_done + 3
        self._wait(line, lambda: "" if oracles.rounds_done >= due else f"{oracles.rounds_done} rounds are done")

    def _rounds_stand(self, names: list[str]) -> None:
        """Of all sites that are alive, or of those named."""
        sites = [self._stage.world.site(name) for name in names] or [node.site for node in self._alive()]
        before = self._rounds_of(sites)
        self._stage.world.run(self._stage.world.now_s + STAND_S)
        assert self._rounds_of(sites) == before, f"rounds were done: {before}, then {self._rounds_of(sites)}"

    def _rounds_of(self, sites: list[str]) -> dict[str, int]:
        machines = {site: self._stage.world.nodes[site].machine for site in sites}
        return {site: machine.rounds.completed_round for site, machine in machines.items() if machine is not None}

    # -- what never happens

    def heard(self, told: Told) -> None:
        for what, words in self._forbidden:
            if what == "told" and told.kind == words[0] and all(part in told.text for part in words[1:]):
                raise AssertionError(f"never was to be told: {told.node}: {told.kind} {told.text}")

    def look(self) -> None:
        for what, words in self._forbidden:
            if what == "two-schedulers":
                terms = [node.machine.term for node in self._alive() if node.machine and node.machine.scheduler.leading]
                assert len(terms) == len(set(terms)), f"two schedulers of one term: {terms}"
            elif what != "told":
                assert self._holds(what, words), f"never was to hold: {what} {' '.join(words)}"

    def end(self) -> None:
        self.look()
        waiting = [moment.command for moment in self._stage.moments.waiting()]
        assert not waiting, f"moments that never came: {waiting}"

    # -- facts

    def _alive(self) -> list[Node]:
        return [node for node in self._stage.world.nodes.values() if node.machine is not None]

    def _holds(self, what: str, words: list[str]) -> str:
        """Empty, or what is not as it says."""
        facts: dict[str, Callable[[list[str]], str]] = {
            "members": self._members,
            "training": lambda names: self._each(names, self._trains, "does not train"),
            "idle": lambda names: self._each(names, lambda node: not self._trains(node), "trains"),
            "paused": self._paused,
            "running": lambda names: self._each(names, lambda node: not self._pause(node), "is paused"),
            "scheduler": self._scheduler,
            "no-scheduler": lambda _: self._no_scheduler(),
            "left": lambda names: self._departed(names, "left"),
            "failed": lambda names: self._departed(names, "failed"),
            "outside": lambda names: self._each(names, self._outside, "is in the roster"),
            "link": lambda names: "" if self._linked(*names) else "the roster has no such link",
            "no-link": lambda names: "the roster has it" if self._linked(*names) else "",
            "voters": lambda names: self._voters(len(names), names),
            "voters-count": lambda names: self._voters(int(names[0]), []),
            "ended": lambda names: self._each(names, lambda node: node.left, "runs"),
            "moments": lambda _: "; ".join(moment.command for moment in self._stage.moments.waiting()),
            "told": self._told,
            "not-told": lambda words: "" if self._told(words) else "it was told",
            "spoiled-results": lambda _: self._spoiled(),
            "answer": self._answer,
            "no-failure-recorded": self._no_failure,
        }
        if what not in facts:
            raise ValueError(f"unknown fact '{what}'")
        return facts[what](words)

    def _each(self, names: list[str], right: Callable[[Node], bool], otherwise: str) -> str:
        wrong = [name for name in names if not right(self._stage.node(name))]
        return f"{' '.join(wrong)} {otherwise}" if wrong else ""

    def _trains(self, node: Node) -> bool:
        return node.machine is not None and node.worker is not None and node.machine.rounds.active

    def _pause(self, node: Node) -> str:
        return node.machine.participation.pause.reason() if node.machine is not None else "its daemon does not run"

    def _outside(self, node: Node) -> bool:
        newest = self._stage.world.oracles.newest
        if newest is None or newest.record(node.site) is not None:  # type: ignore[arg-type]
            return False
        return not self._trains(node)

    def _members(self, names: list[str]) -> str:
        wanted = tuple(sorted(self._stage.node(name).site for name in names))
        for site in wanted:
            machine = self._stage.world.nodes[site].machine
            if machine is None:
                return f"{site} is dead"
            if machine.roster.member_ids() != wanted or machine.roster.learner_ids():
                known = machine.roster
                return f"{site} knows the members {known.member_ids()} and the learners {known.learner_ids()}"
        return ""

    def _same_state(self) -> str:
        workers = [node.worker for node in self._alive() if self._trains(node) and node.worker is not None]
        states = {(worker.round, worker.state) for worker in workers}
        return "" if len(states) == 1 else f"{len(states)} states, of rounds {sorted(number for number, _ in states)}"

    def _paused(self, words: list[str]) -> str:
        reason = self._stage._named(self._pause(self._stage.node(words[0])))
        if not reason:
            return f"{words[0]} is not paused"
        missing = [part for part in words[1:] if part not in reason]
        return f"{words[0]} says '{reason}'" if missing else ""

    def _scheduler(self, names: list[str]) -> str:
        leaders = [node for node in self._alive() if node.machine and node.machine.scheduler.leading]
        if len(leaders) != 1:
            return f"{len(leaders)} schedulers"
        return "" if not names or leaders[0].name in names else f"{leaders[0].name} is the scheduler"

    def _no_scheduler(self) -> str:
        leaders = [node.name for node in self._alive() if node.machine and node.machine.scheduler.leading]
        return f"{' '.join(leaders)} leads" if leaders else ""

    def _departed(self, names: list[str], cause: str) -> str:
        roster = self._stage.world.oracles.newest
        assert roster is not None
        for name in names:
            site = self._stage.world.site(name)
            gone = [one for one in roster.departed if one.site == site]
            if not gone or gone[-1].cause != cause:
                return f"the roster says of {name}: {gone[-1].cause if gone else 'nothing'}"
        return ""

    def _linked(self, one: str, other: str) -> bool:
        roster = self._stage.world.oracles.newest
        sites = self._stage.node(one).site, self._stage.node(other).site
        return roster is not None and roster.link(*sites) is not None  # type: ignore[arg-type]

    def _voters(self, count: int, names: list[str]) -> str:
        machine = self._stage.scheduler().machine
        assert machine is not None
        voters = machine.configuration.voters
        wanted = {self._stage.node(name).site for name in names} or set(voters)
        return "" if len(voters) == count and set(voters) == wanted else f"the voters are {voters}"

    def _told(self, words: list[str]) -> str:
        times, rest = (int(words[0]), words[1:]) if words[0].isdigit() else (1, words)
        kind, *parts = rest
        lines = [one for one in self._stage.told if one.kind == kind and all(part in one.text for part in parts)]
        return "" if len(lines) >= times else f"told {len(lines)} times"

    def _spoiled(self) -> str:
        """Whether a result that some site holds is not what its digest says."""
        held = [result for node in self._alive() if node.bulk for result in node.bulk.averaging.results.values()]
        wrong = [result for result in held if vector_digest(result.chunks) != result.digest]
        return "" if wrong else "all results are what their digests say"

    def _answer(self, words: list[str]) -> str:
        name, request, how, *parts = words
        answer = self._stage.node(name).answers.get(request)
        if answer is None:
            return "there is no answer"
        done, reason = answer
        right = done == (how == "done") and all(part in reason for part in parts)
        return "" if right else f"it is {'done' if done else 'refused'}: {reason}"

    def _no_failure(self, names: list[str]) -> str:
        roster = self._stage.world.oracles.newest
        assert roster is not None
        for name in names:
            site = self._stage.world.site(name)
            if any(one.site == site and one.cause == "failed" for one in roster.departed):
                return f"the roster says that {name} failed"
        return ""
