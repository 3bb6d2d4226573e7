"""A cluster of agreement machines in memory: virtual time, a network that loses, delays, reorders, duplicates and
parts, disks that survive crashes, and a state machine whose state is the list of all commands. After every step the
safety claims of Raft are checked (thesis figure 3.2); a violation is an AssertionError that names the seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.rigs.keys import RigKeys

from chaos_protocols.agreement.raft import (
    Commit,
    Configuration,
    Effect,
    HardState,
    LogEntry,
    Persist,
    RaftMachine,
    RaftMessage,
    RaftSettings,
    RestoreSnapshot,
    Role,
    RoleChanged,
    Send,
    Snapshot,
    Unproven,
    bootstrap,
)
from chaos_protocols.names import SiteId

RUN = "ab" * 16
SETTINGS = RaftSettings(entries_per_append_max=4, append_bytes_max=4096, snapshot_after_entries=8)


def sites(names: str) -> tuple[SiteId, ...]:
    return tuple(SiteId(name) for name in names)


def configuration(voters: str, learners: str = "") -> Configuration:
    return Configuration(voters=sites(voters), learners=sites(learners))


@dataclass(slots=True)
class Disk:
    """What a site finds after a crash."""

    hard_state: HardState = field(default_factory=lambda: HardState(0, None))
    snapshot: Snapshot | None = None
    entries: list[LogEntry] = field(default_factory=list)

    def persist(self, effect: Persist) -> None:
        if effect.hard_state is not None:
            assert effect.hard_state.term >= self.hard_state.term, "the term went back"
            if effect.hard_state.term == self.hard_state.term:
                assert self.hard_state.vote in (None, effect.hard_state.vote), "a second vote in one term"
            self.hard_state = effect.hard_state
        if effect.snapshot is not None:
            self.snapshot = effect.snapshot
            self.entries = [entry for entry in self.entries if entry.index > effect.snapshot.index]
        if effect.truncate_from is not None:
            self.entries = [entry for entry in self.entries if entry.index < effect.truncate_from]
        for entry in effect.entries:
            assert entry.index == self.last_index + 1, "a gap in the stored log"
            self.entries.append(entry)

    @property
    def last_index(self) -> int:
        if self.entries:
            return self.entries[-1].index
        return 0 if self.snapshot is None else self.snapshot.index


@dataclass(slots=True)
class Node:
    """One site: its machine while it is up, and its state machine: the commands applied so far, and the index of the
    last entry."""

    disk: Disk
    machine: RaftMachine | None = None
    applied: list[bytes] = field(default_factory=list)
    applied_index: int = 0
    changes: list[RoleChanged] = field(default_factory=list)


class Cluster:
    """`loss`, `duplication`: shares of messages; `delay_s`: range of the one-way delay, so that messages overtake each
    other. `proofs`: whoever has a log believes a leader that shows its votes, and nobody else."""

    def __init__(self, seed: int, *, settings: RaftSettings = SETTINGS, proofs: bool = False) -> None:
        self.seed, self.proofs = seed, proofs
        self.unproven: list[Unproven] = []
        self.rng = random.Random(seed)
        self.settings = settings
        self.now_s = 100.0
        self.loss = 0.0
        self.duplication = 0.0
        self.delay_s = (0.005, 0.01)
        self.nodes: dict[SiteId, Node] = {}
        self.cut: set[tuple[SiteId, SiteId]] = set()
        self.sent: list[tuple[float, SiteId, SiteId, RaftMessage]] = []
        self.keep_sent = False
        self.filter: Callable[[SiteId, SiteId, RaftMessage], bool] = lambda _source, _destination, _message: True
        self.alone: set[SiteId] = set()
        """Sites that nobody who votes, as far as they know, tells who may lead."""
        self.leaders: dict[int, SiteId] = {}
        self.history: dict[int, LogEntry] = {}
        self.states: dict[int, int] = {}
        self.proposed = 0
        self._wire: list[tuple[float, int, SiteId, SiteId, RaftMessage]] = []
        self._count = itertools.count()

    # --- building and breaking

    def add(self, name: str, disk: Disk | None = None) -> None:
        self.nodes[SiteId(name)] = Node(disk or Disk())
        self.start(name)

    def bootstrap(self, name: str) -> None:
        hard_state, snapshot = bootstrap(SiteId(name))
        self.add(name, Disk(hard_state, snapshot))

    def form(self, voters: str, learners: str = "") -> None:
        """All sites with the same first snapshot, as if the configuration had been agreed long ago."""
        snapshot = Snapshot(index=1, term=1, configuration=configuration(voters, learners), state=b"")
        for name in voters + learners:
            self.add(name, Disk(HardState(1, None), snapshot))

    def start(self, name: str) -> None:
        site = SiteId(name)
        node = self.nodes[site]
        disk = node.disk
        node.machine = RaftMachine(
            site,
            settings=self.settings,
            rng=random.Random(self.rng.getrandbits(32)),
            hard_state=disk.hard_state,
            snapshot=disk.snapshot,
            entries=tuple(disk.entries),
            now_s=self.now_s,
            keys=RigKeys(name) if self.proofs else None,
        )
        if disk.last_index:
            self.enter(node)
        self.restore(node, disk.snapshot)

    def enter(self, node: Node) -> None:
        """It is in the run, and so under its rules."""
        assert node.machine is not None
        node.machine.in_run(RUN, proof_needed=self.proofs)

    def crash(self, name: str) -> None:
        self.nodes[SiteId(name)].machine = None

    def part(self, *groups: str) -> None:
        """Messages pass within a group only; one that is in no group hears nobody."""
        self.cut = {
            (one, other)
            for one in self.nodes
            for other in self.nodes
            if not any(one in group and other in group for group in groups)
        }

    def heal(self) -> None:
        self.cut, self.loss, self.duplication, self.delay_s = set(), 0.0, 0.0, (0.005, 0.01)

    # --- asking

    def __getitem__(self, name: str) -> RaftMachine:
        machine = self.nodes[SiteId(name)].machine
        assert machine is not None, f"{name} is down"
        return machine

    def applied(self, name: str) -> list[bytes]:
        return self.nodes[SiteId(name)].applied

    @property
    def up(self) -> list[RaftMachine]:
        return [node.machine for node in self.nodes.values() if node.machine is not None]

    def leader(self) -> RaftMachine | None:
        """The leader of the highest term, if there is one."""
        leading = [machine for machine in self.up if machine.role is Role.LEADER]
        return max(leading, key=lambda machine: machine.term, default=None)

    # --- running

    def run(self, duration_s: float) -> None:
        self.run_until(lambda: False, duration_s, must=False)

    def run_until(self, condition: Callable[[], bool], limit_s: float = 20.0, *, must: bool = True) -> float:
        """Returns how long it took. `must`: an AssertionError if the condition does not come true within the limit."""
        begin_s, end_s = self.now_s, self.now_s + limit_s
        while not condition():
            next_s = self.next_s()
            if next_s is None or next_s > end_s:
                self.now_s = end_s
                assert not must, f"seed {self.seed}: not within {limit_s} s; {self.describe()}"
                break
            self.now_s = max(self.now_s, next_s)
            self.step()
        return self.now_s - begin_s

    def next_s(self) -> float | None:
        times = [machine.deadline_s for machine in self.up if machine.deadline_s is not None]
        if self._wire:
            times.append(self._wire[0][0])
        return min(times, default=None)

    def step(self) -> None:
        """Everything that is due now: one message, or one timer."""
        if self._wire and self._wire[0][0] <= self.now_s:
            _, _, source, destination, message = heapq.heappop(self._wire)
            node = self.nodes.get(destination)
            if node is not None and node.machine is not None and (source, destination) not in self.cut:
                vouched = destination not in self.alone
                self.execute(node, node.machine.receive(source, message, now_s=self.now_s, vouched=vouched))
                assert node.machine.violation is None, f"seed {self.seed}: {node.machine.violation}"
            return
        for node in self.nodes.values():
            machine = node.machine
            if machine is not None and machine.deadline_s is not None and machine.deadline_s <= self.now_s:
                self.execute(node, machine.tick(now_s=self.now_s))
                after_s = machine.deadline_s
                assert after_s is None or after_s > self.now_s, f"seed {self.seed}: the timer does not move on"
                return

    def execute(self, node: Node, effects: Iterable[Effect], stop_after: int | None = None) -> None:
        """Does what the machine asks for; with `stop_after`, the site crashes after so many effects."""
        machine = node.machine
        assert machine is not None
        persists = 0
        for number, effect in enumerate(effects):
            if number == stop_after:
                node.machine = None
                return
            match effect:
                case Persist():
                    persists += 1
                    assert number == 0 and persists == 1, "Persist must come first, and once"
                    node.disk.persist(effect)
                case Send(destination=destination, message=message):
                    self.send(machine.site, destination, message)
                case Commit(entries=entries):
                    self.apply(node, entries)
                    self.enter(node)
                case RestoreSnapshot(snapshot=snapshot):
                    self.restore(node, snapshot)
                    self.enter(node)
                case Unproven():
                    self.unproven.append(effect)
                case RoleChanged():
                    node.changes.append(effect)
                    self.check_leader(machine.site, effect)
        assert node.disk.last_index == machine.last_index, f"seed {self.seed}: disk and machine differ"

    def send(self, source: SiteId, destination: SiteId, message: RaftMessage) -> None:
        if self.keep_sent:
            self.sent.append((self.now_s, source, destination, message))
        if not self.filter(source, destination, message):
            return
        copies = 2 if self.rng.random() < self.duplication else 1
        for _ in range(copies):
            if self.rng.random() >= self.loss:
                arrival_s = self.now_s + self.rng.uniform(*self.delay_s)
                heapq.heappush(self._wire, (arrival_s, next(self._count), source, destination, message))

    # --- proposing

    def propose(self, name: str, new: Configuration | None = None, command: bytes | None = None) -> int | None:
        self.proposed += 1
        node = self.nodes[SiteId(name)]
        if command is None:
            command = b"command %d" % self.proposed
        index, effects = self[name].propose(command, configuration=new, now_s=self.now_s)
        self.execute(node, effects)
        return index

    def act(self, name: str, effects: list[Effect]) -> None:
        self.execute(self.nodes[SiteId(name)], effects)

    def compact(self, name: str) -> None:
        node = self.nodes[SiteId(name)]
        self.execute(node, self[name].compact(node.applied_index, b"\n".join(node.applied)))

    # --- the state machine, and the claims that always hold

    def apply(self, node: Node, entries: tuple[LogEntry, ...]) -> None:
        """State machine safety: no two sites ever apply different entries at one index (thesis 3.6.3)."""
        assert entries, "an empty Commit"
        for entry in entries:
            assert entry.index == node.applied_index + 1, (
                f"seed {self.seed}: entry {entry.index} after {node.applied_index}"
            )
            known = self.history.setdefault(entry.index, entry)
            assert known == entry, f"seed {self.seed}: two entries committed at {entry.index}: {known} and {entry}"
            node.applied_index = entry.index
            if entry.command:
                node.applied.append(entry.command)
            count = self.states.setdefault(entry.index, len(node.applied))
            assert count == len(node.applied), f"seed {self.seed}: the states after entry {entry.index} differ"

    def restore(self, node: Node, snapshot: Snapshot | None) -> None:
        node.applied = [] if snapshot is None or not snapshot.state else snapshot.state.split(b"\n")
        node.applied_index = 0 if snapshot is None else snapshot.index
        known = [
            entry.command
            for index, entry in sorted(self.history.items())
            if index <= node.applied_index and entry.command
        ]
        assert node.applied == known, f"seed {self.seed}: the snapshot at {node.applied_index} is not the state there"

    def check_leader(self, site: SiteId, change: RoleChanged) -> None:
        """Election safety (one leader in a term) and leader completeness (it has all that was ever committed), thesis
        3.6.3."""
        if change.role is not Role.LEADER:
            return
        known = self.leaders.setdefault(change.term, site)
        assert known == site, f"seed {self.seed}: {known} and {site} both lead term {change.term}"
        disk = self.nodes[site].disk
        stored = {entry.index: entry for entry in disk.entries}
        base = 0 if disk.snapshot is None else disk.snapshot.index
        for index, entry in self.history.items():
            assert index <= base or stored.get(index) == entry, (
                f"seed {self.seed}: leader {site} lacks committed entry {index}"
            )

    def check_logs(self) -> None:
        """Log matching: equal index and term means equal logs up to there, compared pairwise on the disks (thesis
        3.5)."""
        logs = [{entry.index: entry for entry in node.disk.entries} for node in self.nodes.values()]
        for one, other in itertools.combinations(logs, 2):
            common = sorted(one.keys() & other.keys(), reverse=True)
            matched = False
            for index in common:
                matched = matched or one[index].term == other[index].term
                assert not matched or one[index] == other[index], (
                    f"seed {self.seed}: logs differ below a match at {index}"
                )

    def describe(self) -> str:
        return "; ".join(
            f"{machine.site} {machine.role.value} term {machine.term} leader {machine.leader} last {machine.last_index}"
            f" commit {machine.commit_index} voters {''.join(machine.configuration.voters)}"
            for machine in self.up
        )
