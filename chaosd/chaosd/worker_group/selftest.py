"""What workers of a site can do on this machine, tried: a small training, undisturbed and with a loss of each kind.

Every trial trains with real processes, as under `chaosd run`; the states of all layers after every step are compared
with those of one process. What was found is written down for `chaosd doctor`, with the kind of hardware on which it was
executed.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from chaos_planner.pipelines.plans.layout import Policy
from chaos_protocols.worker_group.settings import DEVICE_VARIABLE
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.devices import ACCELERATORS, CPU, Placement
from chaosd.worker_group.history import Happened
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.processes import Launch, launch

COMMAND = (sys.executable, "-u", "-m", "chaos.worker_group.selftest")
FILE_NAMES = {CPU: "selftest.json", **{kind: f"selftest-{kind}.json" for kind in ACCELERATORS}}
"""By kind of device: what was executed on one says nothing of another."""

PIPELINES, STAGES = 2, 2
PROCESSES = PIPELINES * STAGES + 1
"""With a spare."""

STRUCK_AFTER_STEP = 5
STRUCK_AFTER_S = 0.02
"""Then the next step is under way."""

LIMIT_S = 120.0
"""Of one trial, which takes seconds."""


class SelfTestFailed(Exception):
    """It could not be played at all; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`number`: with which a worker is struck, 0: none is. `policies`: what the planner may answer."""

    name: str
    says: str
    number: int = 0
    policies: frozenset[Policy] = frozenset(Policy)
    spares: int = 0


TRIALS = (
    Trial(name="run", says="groups are made, messages keep their order, four workers train what one process trains"),
    Trial(
        name="reroute",
        says="a worker is killed: the groups are severed, the other pipeline takes its work over",
        number=signal.SIGKILL,
        policies=frozenset({Policy.REROUTE}),
    ),
    Trial(
        name="dynamic",
        says="a worker is killed: other pipelines are made, state moves between the survivors",
        number=signal.SIGKILL,
        policies=frozenset({Policy.DYNAMIC}),
    ),
    Trial(
        name="spare", says="a worker is killed: a spare gets its state and its place", number=signal.SIGKILL, spares=1
    ),
    Trial(
        name="hang",
        says="a worker is stopped: it is found, killed and worked around",
        number=signal.SIGSTOP,
        policies=frozenset({Policy.REROUTE}),
    ),
)


class TrialVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of one trial. `held`: it came to its end, every step with the bits of one process. Seconds from the signal on:
    until the loss was seen, until all were ready again; 0 where nothing was struck. `found`: what was wrong."""

    trial: str
    held: bool
    seen_s: float = 0.0
    ready_s: float = 0.0
    found: str = ""


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    """What was executed, when (unix time), and on what. `unused`: accelerators that are here and took no part."""

    at_s: float
    machine: str
    device: str
    backend: str
    torch: str
    unused: tuple[str, ...]
    verdicts: tuple[TrialVerdict, ...]


class _Alone(msgspec.Struct, frozen=True, kw_only=True):
    """What the same training in one process prints."""

    digests: tuple[tuple[str, ...], ...]
    device: str
    backend: str
    torch: str
    unused: tuple[str, ...]


class Playing:
    """One self-test: `async for verdict in playing.verdicts()`, then `playing.result`. `launch`: see
    `WorkerProcesses`; `command`: what it runs; `placement`: of workers on devices."""

    def __init__(
        self, launch: Launch = launch, command: Sequence[str] = COMMAND, placement: Placement | None = None
    ) -> None:
        self._launch, self._command = launch, command
        self._placement = Placement() if placement is None else placement
        self._verdicts: list[TrialVerdict] = []
        self._alone: _Alone | None = None

    async def verdicts(self, trials: Sequence[Trial] = TRIALS) -> AsyncIterator[TrialVerdict]:
        """One after the other. Raises `SelfTestFailed`."""
        self._alone = await asyncio.to_thread(_in_one_process, self._placement.first)
        for trial in trials:
            verdict = await self._play(trial, self._alone.digests)
            self._verdicts.append(verdict)
            yield verdict

    @property
    def result(self) -> SelfTest:
        """Of the trials that were played."""
        alone = self._alone
        assert alone is not None
        return SelfTest(
            at_s=time.time(),
            machine=f"{platform.system()} {platform.machine()}",
            device=alone.device,
            backend=alone.backend,
            torch=alone.torch,
            unused=alone.unused,
            verdicts=tuple(self._verdicts),
        )

    async def _play(self, trial: Trial, expected: Sequence[Sequence[str]]) -> TrialVerdict:
        happened: list[Happened] = []
        struck_s: list[float] = []

        def note(entry: Happened) -> None:
            happened.append(entry)
            if trial.number and not struck_s and entry.kind == "step" and entry.fields["step"] == STRUCK_AFTER_STEP:
                struck_s.append(entry.at_s + STRUCK_AFTER_S)
                pid = controller.pid(PIPELINES * STAGES - 1)
                asyncio.get_running_loop().call_at(struck_s[0], os.kill, pid, trial.number)

        controller = Controller(
            command=self._command,
            workers=PIPELINES * STAGES,
            spares=trial.spares,
            restarts=0,
            planner=SitePlanner(
                workers=PIPELINES * STAGES, pipelines=PIPELINES, stages=STAGES, policies=trial.policies
            ),
            audit=True,
            placement=self._placement,
            launch=self._launch,
            happened=note,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                failed = await controller.run()
        except TimeoutError:
            failed = f"no end within {LIMIT_S:g} s"
        return _judge(trial, happened, struck_s, failed, expected)


def _judge(
    trial: Trial,
    happened: Sequence[Happened],
    struck_s: Sequence[float],
    failed: str,
    expected: Sequence[Sequence[str]],
) -> TrialVerdict:
    if failed:
        return TrialVerdict(trial=trial.name, held=False, found=failed)
    told: dict[int, list[str]] = {}
    for each in happened:
        digests = each.fields.get("digests")
        if each.kind == "step" and isinstance(digests, list | tuple):
            told[int(str(each.fields["step"]))] = [str(digest) for digest in digests]
    wrong = sorted(step for step, digests in told.items() if digests != list(expected[step - 1]))
    if wrong or len(expected) not in told:
        found = f"step {wrong[0]} left other bits than one process" if wrong else "the last step is missing"
        return TrialVerdict(trial=trial.name, held=False, found=found)
    if not trial.number:
        return TrialVerdict(trial=trial.name, held=True)
    seen = [each.at_s - struck_s[0] for each in happened if each.kind == "worker-lost"]
    ready = [each.at_s - struck_s[0] for each in happened if each.kind == "training"]
    if not seen or ready[-1] < seen[0]:
        return TrialVerdict(trial=trial.name, held=False, found="the loss was not recovered from before the end")
    return TrialVerdict(trial=trial.name, held=True, seen_s=seen[0], ready_s=ready[-1])


def _in_one_process(device: str) -> _Alone:
    """On this device. Raises `SelfTestFailed`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", DEVICE_VARIABLE: device}
    ran = subprocess.run(COMMAND, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    if ran.returncode:
        last = (ran.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise SelfTestFailed(
            f"the training ends with exit code {ran.returncode} in one process already: {last}; "
            "workers need the extras torch and planner"
        )
    return msgspec.json.decode(ran.stdout, type=_Alone)


def write(result: SelfTest, folder: Path) -> Path:
    """Where `read` finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAMES[result.device]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return path


def read(folder: Path, kind: str = CPU) -> SelfTest | None:
    """What was found last on this kind of device; None where nothing readable is there."""
    try:
        return msgspec.json.decode((folder / FILE_NAMES[kind]).read_bytes(), type=SelfTest)
    except (OSError, msgspec.MsgspecError):
        return None
