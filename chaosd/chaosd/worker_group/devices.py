"""Which device each worker of this machine computes on: what is here, asked in a process of its own, and who has what.

Asking for devices loads their libraries, which can crash or hang where a driver does not fit (torch_npu by itself
breaks `import torch`): a child process does it, within a time limit. On a machine without the files by which drivers
show themselves nobody is asked, so that it costs nothing there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from chaos_protocols.worker_group.settings import DEVICE_VARIABLE

CPU, AUTO = "cpu", "auto"
ACCELERATORS = ("cuda", "npu")
CHOICES = (AUTO, CPU, *ACCELERATORS)

DRIVER_FILES = {
    "cuda": ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"),
    "npu": ("/dev/davinci_manager",),
}
"""Of which one is there where a driver is loaded (CUDA, also in WSL; ROCm, which torch calls cuda; Ascend)."""

PROBE_LIMIT_S = 60.0
"""Loading the libraries takes seconds, on a cold disk tens of them."""

PROBE = """
import json, sys
kind = sys.argv[1]
import torch
if kind == "npu":
    import torch_npu
module = getattr(torch, kind)
names = [module.get_device_name(index) for index in range(module.device_count())]
print()
print(json.dumps({"names": names}))
"""


class NoDevice(ValueError):
    """The devices that were asked for are not here; the text says why and what to do."""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of accelerator: the names of the devices here. `found`: why there is none, empty if there is."""

    names: tuple[str, ...] = ()
    found: str = ""


Ask = Callable[[str], Probed]


def probe(
    kind: str, *, command: Sequence[str] = (sys.executable, "-c", PROBE), limit_s: float = PROBE_LIMIT_S
) -> Probed:
    """Ask a child process. Raises nothing: whatever becomes of the child is what was found."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        ran = subprocess.run(
            [*command, kind],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probed(found=f"asking for {kind} devices took longer than {limit_s:g} s")
    except OSError as error:
        return Probed(found=f"asking for {kind} devices failed: {error}")
    if ran.returncode:
        last = (ran.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:300]
        how = f"by signal {-ran.returncode}" if ran.returncode < 0 else f"with exit code {ran.returncode}"
        return Probed(found=f"asking for {kind} devices ended {how}: {last}")
    try:
        said = msgspec.json.decode((ran.stdout.strip().splitlines() or [b""])[-1], type=Probed)
    except msgspec.MsgspecError:
        return Probed(found=f"asking for {kind} devices gave no answer")
    return said if said.names else Probed(found=f"torch sees no {kind} device")


def has_driver(kind: str) -> bool:
    """Whether a driver of this kind shows itself."""
    return any(Path(file).exists() for file in DRIVER_FILES[kind])


class Placement:
    """Who has which device. Each is one worker's, unless they are `shared`; one that has failed is given away last."""

    def __init__(self, devices: Sequence[str] = (CPU,), *, shared: bool = True) -> None:
        self._devices, self._shared = list(devices), shared
        self._of: dict[int, str] = {}
        self._failed: set[str] = set()

    @property
    def first(self) -> str:
        """The device of a process that is alone."""
        return self._devices[0]

    def take(self, worker: int) -> str | None:
        """A device for this worker; None: none is free, until another worker's process has ended."""
        users = dict.fromkeys(self._devices, 0)
        for device in self._of.values():
            users[device] += 1
        free = [device for device in self._devices if self._shared or not users[device]]
        if not free:
            return None
        chosen = min(free, key=lambda device: (device in self._failed, users[device]))
        self._of[worker] = chosen
        return chosen

    def release(self, worker: int) -> None:
        """Its process has ended, so that its device's memory is free."""
        self._of.pop(worker, None)

    def has_failed(self, worker: int) -> None:
        """This worker's device raised an error that nothing but a new process mends, if that does."""
        if worker in self._of:
            self._failed.add(self._of[worker])

    def of(self, worker: int) -> str:
        """The device of a worker that runs."""
        return self._of.get(worker, CPU)

    def environment(self, worker: int) -> Mapping[str, str]:
        """What its process is told. A library for another device than its own is not loaded by torch by itself."""
        device = self.of(worker)
        told = {DEVICE_VARIABLE: device}
        if not device.startswith("npu"):
            told["TORCH_DEVICE_BACKEND_AUTOLOAD"] = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        return told


def place(
    wanted: str,
    processes: int,
    *,
    share: bool = False,
    group_size: int = 1,
    driver: Callable[[str], bool] = has_driver,
    ask: Ask = probe,
) -> tuple[Placement, str]:
    """Devices for so many processes (spares included), and one line that says which and why, empty where there is
    nothing to say. `wanted`: of `CHOICES`. `share`: several processes may have one device. Raises `NoDevice`."""
    if wanted not in CHOICES:
        raise NoDevice(f"--device {wanted}: allowed: {', '.join(CHOICES)}")
    if wanted == CPU:
        return Placement(), ""
    if wanted != AUTO:
        return _asked_for(wanted, processes, share, group_size, ask)
    reasons = []
    for kind in ACCELERATORS if group_size == 1 else ():
        found = ask(kind) if driver(kind) else Probed()
        if found.names and (processes <= len(found.names) or share):
            return _placed(kind, found, processes, share)
        if found.names:
            reasons.append(f"{_counted(found, kind)} for {processes} processes (--share-devices lets them share)")
        elif found.found:
            reasons.append(found.found)
    return Placement(), f"workers compute on the CPU: {'; '.join(reasons)}" if reasons else ""


def _asked_for(wanted: str, processes: int, share: bool, group_size: int, ask: Ask) -> tuple[Placement, str]:
    """Devices of the kind that was named. Raises `NoDevice`."""
    if group_size > 1:
        raise NoDevice(
            f"--device {wanted} with --group-size {group_size}: device groups compute on CPUs as yet; leave "
            "--group-size out, or say --device cpu"
        )
    found = ask(wanted)
    if not found.names:
        raise NoDevice(f"--device {wanted}: {found.found}; say --device cpu, or mend that")
    if processes > len(found.names) and not share:
        raise NoDevice(
            f"--device {wanted}: {processes} processes (spares included) and {_counted(found, wanted)}: start at "
            f"most {len(found.names)}, let several have one with --share-devices, or say --device cpu"
        )
    return _placed(wanted, found, processes, share)


def _placed(kind: str, found: Probed, processes: int, share: bool) -> tuple[Placement, str]:
    devices = [f"{kind}:{index}" for index in range(len(found.names))]
    each = "each worker has one of its own" if processes <= len(devices) else f"{processes} processes share them"
    return Placement(devices, shared=share), f"workers compute on {_counted(found, kind)}: {each}"


def _counted(found: Probed, kind: str) -> str:
    names = ", ".join(sorted(set(found.names)))
    return f"{len(found.names)} {kind} device{'s' if len(found.names) > 1 else ''} ({names})"
