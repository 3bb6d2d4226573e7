"""One process of `site_over_library`: trains the small GPT of `examples/site` in one of the ways that are compared.

All ways are there at once, and take turns: a `Gate` says who trains its next block of steps. Each process writes its
steps, but the first of each block, as JSON: a list a block of the seconds that passed and those of the processor.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from chaos import Coordinator, Update
from chaos.worker_group.compute.data import Loader

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "site"))
text_model = importlib.import_module("text_model")

WAYS = ("library", "layers", "replicas", "library_stages", "stages")
RANKS = {"library": 2, "layers": 2, "replicas": 2, "library_stages": 4, "stages": 4}
STAGES = 2
MICRO_BATCHES, WIDTH, BLOCKS, HEADS, LENGTH, DROPOUT = 8, 64, 6, 4, 64, 0.1
BLOCK_STEPS = 20
"""Of a turn: a controller that stood still meanwhile catches up in the first ones, and a median leaves those out."""

LOOK_S = 0.01
"""Between two looks at whose turn it is: those who wait must not be felt by those who train."""

RANKS_MAX = 8


class Gate:
    """A file that all processes map: the number of the turn, whose it is, and the last turn that each has done."""

    BYTES = 8 * (2 + len(WAYS) * RANKS_MAX)

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._words = memoryview(mmap.mmap(self._file.fileno(), self.BYTES)).cast("q")
        self._seen = 0

    def give(self, turn: int, way: str) -> None:
        """It is this way's turn."""
        self._words[1] = WAYS.index(way)
        self._words[0] = turn

    def done(self, turn: int, way: str) -> bool:
        """Whether all of its processes have done this turn."""
        first = 2 + WAYS.index(way) * RANKS_MAX
        return all(self._words[first + rank] >= turn for rank in range(RANKS[way]))

    def wait(self, way: str) -> None:
        """Until it is this way's turn."""
        mine = WAYS.index(way)
        while self._words[0] <= self._seen or self._words[1] != mine:
            time.sleep(LOOK_S)
        self._seen = self._words[0]

    def did(self, way: str, rank: int) -> None:
        """This process has done the turn."""
        self._words[2 + WAYS.index(way) * RANKS_MAX + rank] = self._seen


class Turns:
    """The steps of one process, cut into blocks."""

    def __init__(self, way: str, rank: int, gate: Path, blocks: int, micro_batch: int) -> None:
        self._way, self._rank, self._gate = way, rank, Gate(gate)
        self.steps = blocks * BLOCK_STEPS
        self.numbers: dict[str, Any] = {
            "global_batch": MICRO_BATCHES * micro_batch,
            "micro_batch": micro_batch,
            "seed": 1,
            "steps": self.steps,
        }
        """For a loader."""
        self._took_s: list[list[tuple[float, float]]] = []
        self._began_s = self._worked_s = 0.0

    def begin(self, step: int) -> None:
        """Before a step."""
        if step % BLOCK_STEPS == 0:
            self._gate.wait(self._way)
            self._took_s.append([])
        self._began_s, self._worked_s = time.perf_counter(), time.process_time()

    def end(self, step: int) -> None:
        """After it."""
        if step % BLOCK_STEPS:
            took_s, worked_s = time.perf_counter() - self._began_s, time.process_time() - self._worked_s
            self._took_s[-1].append((took_s, worked_s))
        if step % BLOCK_STEPS == BLOCK_STEPS - 1:
            self._gate.did(self._way, self._rank)

    def write(self, out: Path) -> None:
        (out / f"{self._way}-{self._rank}").write_text(json.dumps(self._took_s), encoding="utf-8")


def model() -> torch.nn.Sequential:
    made: torch.nn.Sequential = text_model.layers(WIDTH, BLOCKS, HEADS, LENGTH, DROPOUT)
    return made


def layers(turns: Turns) -> None:
    with Coordinator() as coordinator:
        parallel = coordinator.parallelize(model(), loss=text_model.loss)
        coordinator.register(model=parallel, optimizer=lambda p: torch.optim.AdamW(p, lr=3e-3), clip_norm=1.0)
        for step, batch in enumerate(coordinator.loader(text_model.Text(LENGTH), **turns.numbers)):
            turns.begin(step)
            parallel.step(batch)
            turns.end(step)


def replicas(turns: Turns) -> None:
    plain = model()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-3)

    def clip(_: Update) -> None:
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)

    with Coordinator() as coordinator:
        replica = coordinator.replicate(plain)
        coordinator.register(model=replica, optimizer=optimizer, on_average=clip)
        begun = -1
        batches: Any = coordinator.loader(text_model.Text(LENGTH), **turns.numbers)
        for inputs, targets in batches:
            step = coordinator.round
            if step != begun:
                turns.begin(step)
                begun = step
            text_model.loss(replica(inputs), targets).backward()
            coordinator.step()
            if coordinator.round != step:
                turns.end(step)


def library(turns: Turns, rank: int) -> None:
    """DistributedDataParallel, gradients accumulated, one all-reduce a step."""
    replica = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(replica.parameters(), lr=3e-3)
    loader = Loader(text_model.Text(LENGTH), **turns.numbers)
    own = range(rank, loader.micro_batches, RANKS["library"])
    for step in range(turns.steps):
        turns.begin(step)
        for g in own:
            inputs, targets = loader.micro_batch(step, g)
            with contextlib.nullcontext() if g == own[-1] else replica.no_sync():
                (text_model.loss(replica(inputs), targets) / len(own)).backward()
        torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        turns.end(step)


def library_stages(turns: Turns, rank: int) -> None:
    """Two pipelines of two stages: Schedule1F1B, one all-reduce a stage, the norm over both stages."""
    pipelines = RANKS["library_stages"] // STAGES
    pipeline, stage = divmod(rank, STAGES)
    columns = [dist.new_group([p * STAGES + s for s in range(STAGES)]) for p in range(pipelines)]
    twins = [dist.new_group([p * STAGES + s for p in range(pipelines)]) for s in range(STAGES)]
    parts = list(model())
    part = torch.nn.Sequential(*parts[len(parts) * stage // STAGES : len(parts) * (stage + 1) // STAGES])
    loader = Loader(text_model.Text(LENGTH), **turns.numbers)
    own = loader.micro_batches // pipelines
    made = pipelining.PipelineStage(part, stage, STAGES, torch.device("cpu"), group=columns[pipeline])
    schedule = pipelining.Schedule1F1B(made, own, loss_fn=text_model.loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=3e-3)
    parameters = list(part.parameters())
    for step in range(turns.steps):
        turns.begin(step)
        if stage == 0:
            schedule.step(torch.cat([loader.micro_batch(step, pipeline * own + g)[0] for g in range(own)]))
        else:
            schedule.step(target=torch.cat([loader.micro_batch(step, pipeline * own + g)[1] for g in range(own)]))
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        dist.all_reduce(flat, group=twins[stage])
        flat /= pipelines
        squares = torch.dot(flat, flat).reshape(1)
        dist.all_reduce(squares, group=columns[pipeline])
        flat *= min(1.0, 1.0 / (float(squares.sqrt()) + 1e-6))
        at = 0
        for p in parameters:
            p.grad = flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        optimizer.step()
        optimizer.zero_grad()
        turns.end(step)


@contextlib.contextmanager
def world(rank: int, size: int, port: str) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main() -> None:
    way, folder, blocks, micro_batch, *more = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank = int(more[0]) if more else int(os.environ["CHAOS_WORKER"])
    turns = Turns(way, rank, Path(folder, "gate"), int(blocks), int(micro_batch))
    if way in ("layers", "stages"):
        layers(turns)
    elif way == "replicas":
        replicas(turns)
    else:
        with world(rank, RANKS[way], more[1]):
            (library if way == "library" else library_stages)(turns, rank)
    turns.write(Path(folder))


if __name__ == "__main__":
    main()
