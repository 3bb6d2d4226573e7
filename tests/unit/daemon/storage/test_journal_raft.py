"""Raft over the journal on a disk that loses power: at most one leader a term, nothing committed lost or changed."""

from __future__ import annotations

import random

from tests.unit.daemon.storage.journal_faults import FaultyFolder, PowerLost
from tests.unit.daemon.storage.journal_model import effect

from chaos_protocols.agreement.raft import (
    Commit,
    Effect,
    HardState,
    Persist,
    RaftMachine,
    RaftMessage,
    RaftSettings,
    Role,
    Send,
    Snapshot,
)
from chaos_protocols.agreement.raft.messages import Configuration
from chaos_protocols.names import SiteId
from chaosd.storage.journal.journal import Journal

SITES = tuple(SiteId(letter * 32) for letter in "abc")
START = Snapshot(index=1, term=1, configuration=Configuration(voters=SITES, learners=()), state=b"")
STEP_S = 0.02


class Site:
    """A machine, its journal, its disk. `stop_at_step` of the disk cuts its power."""

    def __init__(self, cluster: Cluster, name: SiteId, files: dict[str, bytes]) -> None:
        self.cluster, self.name = cluster, name
        self.folder = FaultyFolder(files)
        self.journal = Journal.open("data", folder=self.folder)
        if self.journal.recovered.snapshot is None:
            self.journal.persist(effect(hard_state=HardState(term=1, vote=None), snapshot=START))
            self.journal.close()
            self.journal = Journal.open("data", folder=self.folder)
        found = self.journal.recovered
        self.machine = RaftMachine(
            name,
            settings=RaftSettings(),
            rng=random.Random(cluster.rng.random()),
            hard_state=found.hard_state,
            snapshot=found.snapshot,
            entries=found.entries,
            now_s=cluster.now_s,
        )

    def run(self, effects: list[Effect]) -> None:
        for each in effects:
            match each:
                case Persist():
                    self.journal.persist(each)
                case Send(destination=destination, message=message):
                    self.cluster.wire.append((self.name, destination, message))
                case Commit(entries=entries):
                    for entry in entries:
                        known = self.cluster.committed.setdefault(entry.index, (entry.term, entry.command))
                        assert known == (entry.term, entry.command), f"entry {entry.index} changed after its commit"
                case _:
                    pass
        if self.machine.role is Role.LEADER:
            leader = self.cluster.leaders.setdefault(self.machine.term, self.name)
            assert leader == self.name, f"two leaders in term {self.machine.term}"


class Cluster:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.wire: list[tuple[SiteId, SiteId, RaftMessage]] = []
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.leaders: dict[int, SiteId] = {}
        self.crashes = self.compacted = 0
        self.sites = {name: Site(self, name, {}) for name in SITES}

    def on(self, name: SiteId, act: str, *values: object) -> None:
        """Lets a site act. Its power may go meanwhile."""
        site = self.sites[name]
        try:
            answer = getattr(site.machine, act)(*values, now_s=self.now_s)
            site.run(answer[1] if isinstance(answer, tuple) else answer)
        except PowerLost:
            self.restart(name)

    def step(self, *, faults: bool) -> None:
        self.now_s += STEP_S
        wire, self.wire = self.wire, []
        self.rng.shuffle(wire)
        for source, destination, message in wire:
            if not faults or self.rng.random() < 0.95:
                self.on(destination, "receive", source, message)
        for name in SITES:
            site = self.sites[name]
            if faults and self.rng.random() < 0.02:
                site.folder.stop_at_step = site.folder.steps + self.rng.randint(1, 6)
            deadline_s = site.machine.deadline_s
            if deadline_s is not None and deadline_s <= self.now_s:
                self.on(name, "tick")
            if site.machine.can_propose and self.rng.random() < 0.5:
                self.on(name, "propose", self.rng.randbytes(20))
            if self.rng.random() < 0.01:
                self.compact(name)

    def compact(self, name: SiteId) -> None:
        site = self.sites[name]
        try:
            effects = site.machine.compact(site.machine.commit_index, b"roster")
            site.run(effects)
            self.compacted += bool(effects)
        except PowerLost:
            self.restart(name)

    def restart(self, name: SiteId) -> None:
        """The site comes back at once with what its disk kept."""
        self.crashes += 1
        self.sites[name] = Site(self, name, self.sites[name].folder.after_power_loss(self.rng))


def test_raft_over_the_journal_keeps_its_promises_when_power_is_lost_at_any_step() -> None:
    """Invariants 1, 2 and 7."""
    crashes = commits = compacted = 0
    for seed in range(30):
        cluster = Cluster(seed)
        for _ in range(400):
            cluster.step(faults=True)
        for site in cluster.sites.values():
            site.folder.stop_at_step = None
        before = max(cluster.committed, default=0)
        for _ in range(200):
            cluster.step(faults=False)
        assert max(cluster.committed) > before + 10, f"seed {seed}: no progress after the faults"
        crashes += cluster.crashes
        commits += len(cluster.committed)
        compacted += cluster.compacted
    assert crashes > 300
    assert commits > 2000
    assert compacted > 200
