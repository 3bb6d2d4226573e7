"""Exact moments of a story: `when SITE WHAT: COMMAND`, `before SITE WHAT: COMMAND`. Each comes true once.

    when a commits AddSite: kill a         a knows that it is committed, and has told nobody
    when a persists AddSite: kill a        the entry is on a's disk, nothing else of that step was done
    before b persists vote: kill b         the write fails: nothing of it is on the disk
    when c hears ReduceFinished: kill c    the event is there, c has not looked at it
    when b does ServeState: kill b         the effect is done (before: it is not)
    when b sends RoundStatusReply: kill b      the message is on its way (before: it is not)

SITE may be `any` or `scheduler`; in the command, `it` is the site at which the moment came, and commands may follow
each other with `;`. A name with `=value` behind it asks for a field: `AddSite=d` is about site d.
`expect moments` waits until all of them have come. Where one is only waited for, its command is `go SITE`, which
changes nothing at a site that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos_protocols import effects
from chaos_protocols.agreement.commands import Command, decode_command
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.wire.control import RaftEnvelope

if TYPE_CHECKING:
    from tests.simulation.stage import Stage
    from tests.simulator.node import Node

WORDS = ("commits", "persists", "hears", "does", "sends")


@dataclass(slots=True)
class Moment:
    before: bool
    site: str
    word: str
    name: str
    about: str
    command: str
    come: bool = False


class Moments:
    """Watches every node: its machine's way in, and the execution of its effects."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.all: list[Moment] = []
        self.it: Node | None = None
        started = stage.world.oracles.started

        def watched(node: Node) -> None:
            started(node)
            self._watch_machine(node)

        stage.world.oracles.started = watched  # type: ignore[method-assign]

    def add(self, line: str) -> None:
        head, _, command = line.partition(": ")
        verb, site, word, what = head.split()
        if word not in WORDS or not command:
            raise ValueError(f"cannot read '{line}'; after the site comes one of {', '.join(WORDS)}")
        if verb == "before" and word in ("commits", "hears"):
            raise ValueError(f"cannot be asked for: '{line}'; 'when' is the moment before anything follows from it")
        name, _, about = what.partition("=")
        self.all.append(Moment(verb == "before", site, word, name, about, command))

    def waiting(self) -> list[Moment]:
        return [moment for moment in self.all if not moment.come]

    # -- what is watched

    def watch(self, node: Node) -> None:
        execute = node._execute

        def watched(effect: Any) -> None:
            generation = node._generation
            told = self._facts(node, effect) if self.waiting() else []
            for word, name, fact in told:
                self._reached(node, word, name, fact, before=True)
            if generation != node._generation:
                return
            execute(effect)
            self._stage.executed(node, effect)
            for word, name, fact in told:
                self._reached(node, word, name, fact, before=False)

        node._execute = watched  # type: ignore[method-assign]

    def _watch_machine(self, node: Node) -> None:
        machine, generation = node.machine, node._generation
        assert machine is not None
        handle, install = machine.handle, machine._install
        applied: list[Command] = []

        def installed(roster: Any, command: Command | None) -> None:
            if command is not None:
                applied.append(command)
            install(roster, command)

        def handled(event: Any, *, now_s: float) -> list[Any]:
            self._reached(node, "hears", type(event).__name__, event, before=False)
            if generation != node._generation:
                return []
            out = handle(event, now_s=now_s)
            for command in applied:
                self._reached(node, "commits", type(command).__name__, command, before=False)
            applied.clear()
            if generation != node._generation:
                return []
            if node.stopped:
                node.mailbox.insert(0, lambda: self._catch_up(node, out))
                return []
            return out

        machine._install = installed  # type: ignore[method-assign]
        machine.handle = handled  # type: ignore[method-assign]

    def _catch_up(self, node: Node, effects_due: list[Any]) -> None:
        for effect in effects_due:
            node._execute(effect)

    def _facts(self, node: Node, effect: Any) -> list[tuple[str, str, Any]]:
        facts: list[tuple[str, str, Any]] = [("does", type(effect).__name__, effect)]
        if isinstance(effect, Persist):
            commands = [decode_command(entry.command) for entry in effect.entries if entry.command]
            facts += [("persists", type(command).__name__, command) for command in commands]
            state = effect.hard_state
            if state is not None and state.vote is not None and state != node.disk.hard_state:
                facts.append(("persists", "vote", state))
        elif isinstance(effect, effects.SendEnvelope) and effect.envelope.source == node.site:
            message = effect.envelope.message
            inner = message.message if isinstance(message, RaftEnvelope) else message
            facts.append(("sends", type(inner).__name__, effect.envelope))
        elif isinstance(effect, effects.ToWorker):
            facts.append(("does", type(effect.message).__name__, effect.message))
        return facts

    def _reached(self, node: Node, word: str, name: str, fact: Any, *, before: bool) -> None:
        for moment in self.waiting():
            if (moment.word, moment.name, moment.before) != (word, name, before):
                continue
            if moment.site == "scheduler":
                if node.machine is None or not node.machine.scheduler.leading:
                    continue
            elif moment.site not in ("any", node.name):
                continue
            if moment.about and self._stage.world.site(moment.about) not in repr(fact):
                continue
            moment.come, self.it = True, node
            self._stage.tell(node, "!!", f"{'before it ' if moment.before else ''}{word} {name}: {moment.command}")
            for command in moment.command.split("; "):
                self._stage.command(command)
