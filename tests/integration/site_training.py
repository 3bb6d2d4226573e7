"""A small training for several workers of one site, with faults at chosen places: what `test_worker_group` runs.

TRAINING: arguments of `train` as JSON; `digests`, a file for those of all layers after each step (of a worker that has
all); `hold`, a step and a file: after the step the training waits for the file; `saves`, two files: after the training
the script waits for the first and makes the second; `pass_s`, seconds that each pass of a worker takes more, by its
number; `slow`, a file with the process id of a worker whose passes take `slow_pass_s` more; `pace_s` a round, until the
file `fast` is there. FAULTS: `worker:step:where[:signal]`, several with `;`. A fault of a worker strikes once, at the
first call of the place in that step (for `building` and `moving`: in that generation), by its own hand; signal 0 is the
error of a device that fails, -1 leaves the process no further open file.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.rigs import devices

from chaos import Coordinator
from chaos.worker_group import life, together
from chaos.worker_group.chain import layers
from chaos.worker_group.compute import interpreter
from chaos.worker_group.exchange import lane_lines, line, summing
from chaos.worker_group.exchange.groups import Groups
from chaos_protocols.worker_group.messages import Reduced

STEPS = 6
SAMPLES, FEATURES, WIDTH, CLASSES = 96, 8, 16, 3
LAYERS = 6
NO_FILES = -1


class Block(torch.nn.Module):
    """With dropout, so that random numbers matter, and a table that is no part of the state."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH), persistent=False)
        self.register_buffer("shift", torch.full((WIDTH,), 0.01))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = x + self.dropout(torch.tanh(self.linear(x))) * self.scale + self.shift
        return left


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random points, the same in every process."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.y = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def make_model(dropout: float = 0.1) -> torch.nn.Sequential:
    torch.manual_seed(3)
    blocks = [Block(dropout) for _ in range(LAYERS - 2)]
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, WIDTH), *blocks, torch.nn.Linear(WIDTH, CLASSES))


class OwnForward(torch.nn.Module):
    """The same model, with a forward pass of its own in place of `Sequential`."""

    def __init__(self) -> None:
        super().__init__()
        enter, *blocks, leave = make_model()
        self.enter, self.blocks, self.leave = enter, torch.nn.ModuleList(blocks), leave

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        value = self.enter(x)
        for block in self.blocks:
            value = block(value) * scale
        left: torch.Tensor = self.leave(value)
        return left


def make_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def make_scheduler(optimizer: torch.optim.Optimizer) -> Any:
    """Every step has a learning rate of its own."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))


CLIP_NORM, GLOBAL_BATCH, MICRO_BATCH = 2.0, 16, 2


def train(
    after: Callable[[Any, Any], None],
    *,
    standalone: bool = True,
    steps: int = STEPS,
    seed: int = 7,
    pace_s: float = 0,
    fast: str = "",
    copies: int = 0,
    traced: bool = False,
    micro_batch: int = MICRO_BATCH,
    clip_norm: float | None = CLIP_NORM,
    scheduled: bool = False,
    device_group: Callable[[torch.nn.Module, Any], None] | None = None,
    logged: str = "",
) -> None:
    """`after(model, report)` is called after each step. `logged`: a file for what is logged (`WrittenLines`)."""
    with Coordinator(standalone=standalone, handle_signals=False, verbose=not standalone) as coordinator:
        sharded: dict[str, Any] = {"shard_optimizer": True, "optimizer_copies": copies} if copies else {}
        module = OwnForward() if traced else make_model()
        module = module if device_group else devices.placed(module)
        model = coordinator.parallelize(
            module, loss=torch.nn.functional.cross_entropy, device_group=device_group, **sharded
        )
        scheduler = make_scheduler if scheduled else None
        coordinator.register(model=model, optimizer=make_optimizer, scheduler=scheduler, clip_norm=clip_norm)
        loader = coordinator.loader(
            Points(), global_batch=GLOBAL_BATCH, micro_batch=micro_batch, seed=seed, steps=steps
        )
        if logged:
            coordinator.log_to(lambda: WrittenLines(logged))
        for batch in loader:
            report = model.step(batch)
            after(model, report)
            if logged:
                coordinator.log(loss=report.loss)
            pause(pace_s, fast)


class WrittenLines:
    """Stands in for TensorBoard's writer: its process, when it was made, and what it was given since, line by line."""

    def __init__(self, path: str) -> None:
        self._path, self._lines = path, [json.dumps([os.getpid(), "made"])]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self._lines.append(json.dumps([os.getpid(), name, value, step]))

    def flush(self) -> None:
        with open(self._path, "a", encoding="utf-8") as out:
            out.write("".join(f"{line}\n" for line in self._lines))
        self._lines = []


def pause(pace_s: float, fast: str) -> None:
    """Between two rounds, until the file `fast` is there: what the test waits for has come about."""
    if not fast or not os.path.exists(fast):
        time.sleep(pace_s)


class Fault:
    """A signal of this process to itself, once, where `before` says; 0: the error of a device that has failed."""

    def __init__(self, who: str, step: int, where: str, number: int = signal.SIGKILL) -> None:
        self.who, self.step, self.where, self.number = who, step, where, number
        self._struck = False

    def strike(self) -> None:
        with open(os.environ["STRUCK"], "a", encoding="utf-8") as out:
            out.write(f"{self.who.partition('.')[0]} {self.where} {time.monotonic()!r}\n")
        if not self.number:
            devices.fail()
        if self.number == NO_FILES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            return
        os.kill(os.getpid(), self.number)

    def before(self, owner: Any, name: str, due: Callable[..., bool]) -> None:
        real = getattr(owner, name)

        def planted(*args: Any, **kwargs: Any) -> Any:
            if not self._struck and due(*args):
                self._struck = True
                self.strike()
            return real(*args, **kwargs)

        setattr(owner, name, planted)

    def after_reduced(self) -> None:
        """When the sums of the step have been told."""
        sends: Any = lane_lines.FollowerLine if "." in self.who else line.ControlLine
        send = sends.send

        def send_and_strike(control: Any, message: Any) -> None:
            send(control, message)
            if isinstance(message, Reduced) and message.step == self.step:
                self.strike()

        sends.send = send_and_strike


def faults() -> Iterator[Fault]:
    """Those of this worker, of FAULTS; a worker `1.2` is lane 2 of the device group 1."""
    for fault in filter(None, os.environ.get("FAULTS", "").split(";")):
        who, step, where, *number = fault.split(":")
        worker, _, lane = who.partition(".")
        if (worker, lane or "0") == (os.environ.get("CHAOS_WORKER"), os.environ.get("CHAOS_LANE", "0")):
            yield Fault(who, int(step), where, int(number[0]) if number else signal.SIGKILL)


def _plant(fault: Fault) -> None:
    before, step, where = fault.before, fault.step, fault.where
    now: list[int] = [0]
    run = interpreter.StepRun.run

    def noted(self: Any) -> None:
        now[0] = self._step
        run(self)

    interpreter.StepRun.run = noted  # type: ignore[method-assign]
    match where:
        case "forward":
            before(interpreter.StepRun, "_forward", lambda self, g, *_: self._step == step)
        case "backward":
            before(interpreter.StepRun, "_backward", lambda self, g, *_: self._step == step)
        case "reduce":
            before(summing.StepSums, "_closed_piece", lambda *_: now[0] == step)
        case "reduced":
            fault.after_reduced()
        case "update":  # one layer is updated, the next one is not
            before(layers.Layer, "update", lambda self, *_: now[0] == step and self.index % 3 == 1)
        case "commit":  # the commit has come, nothing is updated yet
            before(life, "update", lambda layers, run, commit: commit.step == step)
        case "building":
            before(Groups, "build", lambda self, _: self._generation == step)
        case "moving":
            before(life, "move", lambda *_: step == line_generation[0])
            line_generation: list[int] = [0]
            build = Groups.build

            def build_noted(self: Any, groups: Any) -> None:
                line_generation[0] = self._generation
                build(self, groups)

            Groups.build = build_noted  # type: ignore[method-assign]
        case "refresh":
            before(life, "refresh", lambda *_: now[0] == step)
        case "outside":
            before(together.TrainsTogether, "step", lambda self: self._tag.step == step)
        case _:
            raise ValueError(f"no place {where}")


SLOW_PASS_S = 0.01
"""A pass takes a tenth of that otherwise."""


def _is_named(file: str) -> bool:
    try:
        return Path(file).read_text(encoding="utf-8") == str(os.getpid())
    except FileNotFoundError:
        return False


def _slow_down(name: str, more_s: Callable[[], float]) -> None:
    real = getattr(interpreter.StepRun, name)

    def slowed(self: Any, *args: Any) -> Any:
        time.sleep(more_s())
        return real(self, *args)

    setattr(interpreter.StepRun, name, slowed)


def main(*afterwards: Callable[[Any, Any], None], **fixed: Any) -> None:
    for fault in faults():
        _plant(fault)
    given = json.loads(os.environ.get("TRAINING", "{}"))
    written = given.pop("digests", "")
    hold, file = given.pop("hold", (0, ""))

    def after(model: Any, report: Any) -> None:
        while file and report.step == hold and not os.path.exists(file):
            time.sleep(0.01)
        if written:
            with open(written, "a", encoding="utf-8") as out:
                digests = [digest for _, digest in sorted(model.digests().items())]
                out.write(json.dumps([report.step, digests]) + "\n")
        for each in afterwards:
            each(model, report)

    more_s, slow = given.pop("pass_s", {}).get(os.environ.get("CHAOS_WORKER"), 0.0), given.pop("slow", "")
    slow_s = given.pop("slow_pass_s", SLOW_PASS_S)
    if more_s or slow:
        for name in ("_forward", "_backward"):
            _slow_down(name, lambda: slow_s if slow and _is_named(slow) else more_s)
    go, saved = given.pop("saves", ("", ""))
    train(after, **given, **fixed)
    if saved:
        while not os.path.exists(go):
            time.sleep(0.01)
        Path(saved).touch()


if __name__ == "__main__":
    main()
