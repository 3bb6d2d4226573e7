"""What a simulated site keeps of its worker's state: a mirror in its daemon's memory, checkpoints on its disk.

Copies take time, during which the worker's region may be overwritten: such a copy is torn, and an oracle sees it when
it is used. A checkpoint may be damaged on disk; that shows when it is loaded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from chaos_protocols import effects, events
from chaos_protocols.settings import CheckpointSettings
from chaos_protocols.state.result_log import RESULTS_BYTES_MAX
from chaos_protocols.wire.plans import CheckpointFacts

if TYPE_CHECKING:
    from tests.simulator.contents import Region
    from tests.simulator.node import Node
    from tests.simulator.world import World

CHECKPOINTS_KEPT = 3
SLOW_DISKS_SHARE = 0.25
"""Of the runs that keep something: many rounds are done before the first checkpoint is whole."""
TORN = "torn"
Snapshot = tuple[int, str]


def keep_at_random(world: World, rng: random.Random) -> None:
    """All sites keep mirrors, checkpoints, both or neither; copies are fast or slow, disks too; contributions small, or
    so large that few results fit into the memory for them; where slow links carry them, as large as they are: by the
    bytes that workers say the run waits for who joins over one (spec 8.13). To be called before the sites start."""
    keep = CheckpointSettings(
        memory_checkpoint_every_rounds=rng.choice((0, 1, 2, 7)),
        checkpoint=rng.choice(("off", "auto", "auto", "fixed")),
        checkpoint_every_rounds=rng.choice((3, 11)),
    )
    world.settings = replace(world.settings, keep=keep)
    copy_range_s: tuple[float, float] = rng.choice(((0.0, 0.03), (0.05, 0.4)))
    slow = random.Random(f"disks/{world.seed}").random() < SLOW_DISKS_SHARE
    disk_range_s = (1.0, 20.0) if slow else (0.01, 0.3)
    for node in world.nodes.values():
        node.keeper.copy_range_s = copy_range_s
        node.keeper.disk_range_s = disk_range_s
        said = rng.choice((0, RESULTS_BYTES_MAX // 6))
        if not world.network.chunk_bytes:
            node.contribution_bytes = said


def is_aside(aside: effects.SetCheckpointsAside, checkpoint: CheckpointFacts) -> bool:
    """Whether that concerns this file."""
    return checkpoint.lineage == aside.lineage and aside.after < checkpoint.round <= aside.until


class Keeper:
    """`memory` dies with the daemon, `files` do not; a file without a state is damaged."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rng = random.Random(f"keeper/{node.world.seed}/{node.site}")
        self.memory: Snapshot | None = None
        self.files: dict[CheckpointFacts, Snapshot | None] = {}
        self.asides: list[effects.SetCheckpointsAside] = []
        """What its daemon has renamed, or will when it is written."""
        self.writing: tuple[CheckpointFacts, Snapshot | None] | None = None
        """The file that is being written, of a copy in memory."""
        self.wrote: set[int] = set()
        """Lineages of which a checkpoint was whole here once, whatever has become of it."""
        self.restored: list[str] = []
        self.copy_range_s = (0.0, 0.03)
        self.disk_range_s = (0.01, 0.3)

    def started(self) -> None:
        self.memory = self.writing = None
        self.asides = []  # what it renamed is gone; what the next one writes it does not know to be doubtful
        if self.files:
            self._node.handle(events.CheckpointsFound(checkpoints=tuple(self.files)))

    @property
    def offered(self) -> dict[CheckpointFacts, Snapshot | None]:
        """The files, and the one that is being written, which its daemon tells others of (spec 13.3)."""
        writing = self.writing
        if writing is None or any(is_aside(aside, writing[0]) for aside in self.asides):
            return self.files
        return self.files | dict((writing,))

    def damage(self) -> None:
        """Every file gets a wrong byte."""
        self.files = dict.fromkeys(self.files)

    def execute(self, effect: effects.CheckpointEffect) -> None:
        region = self._node.region
        match effect:
            case effects.SaveMemoryCheckpoint(round=number):
                self._keep(number)
            case effects.DropMemoryCheckpoint():
                self.memory = None
            case effects.RestoreMemoryCheckpoint(attempt=attempt):
                memory = self.memory
                self._later(self.copy_range_s, lambda: self._put(attempt, memory, "mirror", region))
            case effects.WriteCheckpoint(checkpoint=checkpoint):
                memory = self.memory
                self.writing = (checkpoint, memory)
                self._later(self.disk_range_s, lambda: self._written(checkpoint, memory))
            case effects.LoadCheckpoint(attempt=attempt, checkpoint=checkpoint):
                self._later(
                    self.disk_range_s, lambda: self._put(attempt, self.files.get(checkpoint), "checkpoint", region)
                )
            case effects.SetCheckpointsAside():
                self.asides.append(effect)
                self.files = {one: state for one, state in self.files.items() if not is_aside(effect, one)}
            case _:
                assert_never(effect)

    def _later(self, range_s: tuple[float, float], action: Callable[[], None]) -> None:
        """On a thread: it ends with the daemon."""
        node = self._node
        generation = node._generation
        node.world.schedule(
            self._rng.uniform(*range_s), lambda: action() if generation == node._generation and node.alive else None
        )

    def _keep(self, number: int) -> None:
        node, region = self._node, self._node.region
        if region is None:
            return
        before, state = region.version, region.state
        self.memory = None

        def copied() -> None:
            self.memory = (number, state if region.version == before else TORN)
            node.handle(events.MemoryCheckpointSaved(round=number))

        self._later(self.copy_range_s, copied)

    def _put(self, attempt: int, state: Snapshot | None, source: str, region: Region | None) -> None:
        """Into the region of the worker that was there when this began, as the daemon has it: that of a worker that
        came since is another one. The transfer engine must not write there at the same time."""
        node = self._node
        assert node.bulk is not None
        if state is None or region is None:
            node.handle(events.RestoreFailed(attempt=attempt, reason=f"the {source} is damaged"))
            return
        if region is node.region and node.bulk.transfers.fetching is not None:
            node.world.oracles.fail(4, f"{node.name} restores a state into a region that a transfer writes to")
        region.put(state[1])
        self.restored.append(source)
        node.handle(events.StateRestored(attempt=attempt))

    def _written(self, checkpoint: CheckpointFacts, state: Snapshot | None) -> None:
        node = self._node
        assert node.machine is not None
        if state is None or state[0] != checkpoint.round or state[1] == TORN:
            node.world.oracles.fail(4, f"{node.name} writes {state} as its checkpoint of round {checkpoint.round}")
        self.writing = None
        if not any(is_aside(aside, checkpoint) for aside in self.asides):
            self.files[checkpoint] = state
        self.wrote.add(checkpoint.lineage)
        for old in sorted(self.files)[:-CHECKPOINTS_KEPT]:
            del self.files[old]
        node.handle(events.CheckpointWritten(checkpoint=checkpoint, size_bytes=1 << 20, took_s=0.1))
