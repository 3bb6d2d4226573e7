"""Measures the facts of plans on the real model: T_f, T_b, m_p, m_o, m_g, m_a of each layer, and restart times.

Run by hand, from Python, on a site's own model; `chaosd plan --profile FILE` reads the result as JSON. The model is
a list of layers; one micro-batch flows through it. Each layer runs alone: warm-up, then the median of the repeats, so
that a hiccup of the machine does not become a fact. Backward is timed twice, whole and for the input's gradient alone
(what decoupled backward sends on first). Activation bytes are what autograd keeps for backward: the sum of the distinct
storages packed by `saved_tensors_hooks`, parameters and buffers left out, and on cuda and npu the allocator's figure
where it is larger. A tensor that two neighbouring layers both keep counts in both: never an under-estimate.

The only module here that imports torch, and only inside functions: all else runs without it.

Source: Odyssey IV (profiler), IV-C formula 14 ("all of the last four parameters can be estimated by profiling").
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_planner.pipelines.facts.site import LayerFacts, ModelProfile

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Optimizer = torch.optim.Optimizer

WARM_UPS = 2
"""Runs before the clock counts: allocators, autotuners and caches resolve in the first (seen on cpu and cuda)."""

REPEATS = 7
"""Runs whose median is the fact; odd, so that the median is a measured value."""

REPEATS_MAX = 10_000
WORLD_MAX = 64
PROCESS_TIMEOUT_S = 300.0
"""A worker that takes longer to come up than this is reported as failed, not waited for."""


class TorchMissing(RuntimeError):
    """torch cannot be imported here; the text says how to get it."""


class ProfileFailed(RuntimeError):
    """A layer cannot be measured, or a process that was timed failed; the text names it and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """Facts of one layer, and what they rest on.

    `peak_bytes`: most memory during its forward and backward beyond what it holds anyway (allocator, cuda and npu; on
    cpu the activations and the output). `forward_spread`: (largest - smallest) / median of the timed forwards.
    """

    facts: LayerFacts
    peak_bytes: int
    forward_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """How to measure. `device` is cpu, cuda or npu, with an index if wanted."""

    device: str = "cpu"
    warm_ups: int = WARM_UPS
    repeats: int = REPEATS

    def __post_init__(self) -> None:
        if self.device.split(":")[0] not in ("cpu", "cuda", "npu"):
            raise ValueError(f"device must be cpu, cuda or npu (with an index if wanted), not {self.device!r}")
        if not 0 <= self.warm_ups <= REPEATS_MAX or not 1 <= self.repeats <= REPEATS_MAX:
            raise ValueError(
                f"warm_ups must be 0 to {REPEATS_MAX} and repeats 1 to {REPEATS_MAX}, "
                f"not {self.warm_ups} and {self.repeats}"
            )


def profile_model(
    name: str,
    layers: Sequence[nn.Module],
    example: Any,
    *,
    global_micro_batches: int,
    settings: ProfileSettings | None = None,
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None,
) -> ModelProfile:
    """Facts of the model, one micro-batch (`example`, first dimension = samples) at a time.

    `optimizer` builds the optimizer for a layer's parameters, AdamW if not given: its state is counted after one step.
    Raises `TorchMissing`, `ProfileFailed`; `ValueError` for an empty list of layers.
    """
    profiles = profile_layers(layers, example, settings=settings, optimizer=optimizer)
    tensors = _tensors(example)
    if not tensors or tensors[0].dim() == 0:
        raise ValueError("the example must be a tensor (or a tuple of tensors) whose first dimension counts samples")
    return ModelProfile(
        name=name,
        layers=tuple(profile.facts for profile in profiles),
        micro_batch_size=int(tensors[0].shape[0]),
        global_micro_batches=global_micro_batches,
    )


def profile_layers(
    layers: Sequence[nn.Module],
    example: Any,
    *,
    settings: ProfileSettings | None = None,
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None,
) -> tuple[LayerProfile, ...]:
    """As `profile_model`, with the spread and peak of each layer. Parameters and gradients are left as they were."""
    torch = _torch()
    if not layers:
        raise ValueError("there is no layer to profile: the model must be a list of at least one layer")
    chosen = settings or ProfileSettings()
    device = _device(torch, chosen.device)
    build = optimizer or torch.optim.AdamW
    found: list[LayerProfile] = []
    value = _map(example, lambda tensor: tensor.detach().to(device))
    for index, layer in enumerate(layers):
        label = f"{index} {type(layer).__name__}"
        layer.to(device)
        try:
            profile, value = _profile_layer(torch, label, layer, value, device, chosen, build)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ProfileFailed(f"layer {label} cannot be profiled on {device}: {error}") from error
        found.append(profile)
    return tuple(found)


def _profile_layer(
    torch: Any,
    label: str,
    layer: nn.Module,
    value: Any,
    device: Any,
    settings: ProfileSettings,
    build: Callable[[list[nn.Parameter]], Optimizer],
) -> tuple[LayerProfile, Any]:
    source = _map(value, lambda tensor: tensor.detach().requires_grad_(tensor.is_floating_point()))
    parameters = [p for p in layer.parameters() if p.requires_grad]
    inputs = [tensor for tensor in _tensors(source) if tensor.requires_grad]
    saved_before = [p.grad for p in parameters]
    activation_bytes, peak_bytes, output = _memory(torch, layer, source, device)

    for _ in range(settings.warm_ups):
        layer(*_arguments(source))
    forward = [_seconds(torch, device, lambda: layer(*_arguments(source))) for _ in range(settings.repeats)]
    backward_s = _backward_s(torch, layer, source, [*inputs, *parameters], device, settings)
    backward_input_s = min(_backward_s(torch, layer, source, inputs, device, settings), backward_s)
    optimizer_bytes, optimizer_step_s = _optimizer_cost(torch, device, parameters, build, settings)
    for parameter, gradient in zip(parameters, saved_before, strict=True):
        parameter.grad = gradient
    facts = LayerFacts(
        name=label,
        forward_s=statistics.median(forward),
        backward_s=backward_s,
        backward_input_s=backward_input_s,
        parameter_bytes=sum(_bytes(p) for p in layer.parameters()),
        optimizer_bytes=optimizer_bytes,
        gradient_bytes=sum(_bytes(p) for p in parameters),
        activation_bytes=activation_bytes,
        output_bytes=sum(_bytes(tensor) for tensor in _tensors(output)),
        optimizer_step_s=optimizer_step_s,
    )
    spread = (max(forward) - min(forward)) / facts.forward_s if facts.forward_s else 0.0
    return LayerProfile(facts=facts, peak_bytes=peak_bytes, forward_spread=spread), output


def _backward_s(
    torch: Any, layer: nn.Module, source: Any, wanted: list[Any], device: Any, settings: ProfileSettings
) -> float:
    """Median seconds in which autograd finds the gradients of these tensors; 0 where the layer has none to give."""
    times: list[float] = []
    for attempt in range(settings.warm_ups + settings.repeats):
        results = [tensor for tensor in _tensors(layer(*_arguments(source))) if tensor.requires_grad]
        if not wanted or not results:
            return 0.0
        gradients = [torch.ones_like(tensor) for tensor in results]
        run = partial(torch.autograd.grad, results, wanted, gradients, allow_unused=True)
        seconds = _seconds(torch, device, run)
        if attempt >= settings.warm_ups:
            times.append(seconds)
    return statistics.median(times)


def _memory(torch: Any, layer: nn.Module, source: Any, device: Any) -> tuple[int, int, Any]:
    """(bytes kept for backward, peak bytes, output) of one forward and backward."""
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    allocator = None if device.type == "cpu" else getattr(torch, device.type)
    before = 0
    if allocator is not None:
        allocator.synchronize(device)
        allocator.reset_peak_memory_stats(device)
        before = allocator.memory_allocated(device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(*_arguments(source))
    activation_bytes = sum(kept.values())
    after = allocator.memory_allocated(device) if allocator is not None else 0
    differentiable = [tensor for tensor in _tensors(output) if tensor.requires_grad]
    wanted = [t for t in (*_tensors(source), *layer.parameters()) if t.requires_grad]
    if differentiable and wanted:
        torch.autograd.grad(differentiable, wanted, [torch.ones_like(t) for t in differentiable], allow_unused=True)
    peak_bytes = activation_bytes + sum(_bytes(tensor) for tensor in _tensors(output))
    if allocator is not None:
        allocator.synchronize(device)
        activation_bytes = max(activation_bytes, after - before)
        peak_bytes = max(activation_bytes, allocator.max_memory_allocated(device) - before)
    return activation_bytes, peak_bytes, _map(output, lambda tensor: tensor.detach())


def _optimizer_cost(
    torch: Any,
    device: Any,
    parameters: list[nn.Parameter],
    build: Callable[[list[nn.Parameter]], Optimizer],
    settings: ProfileSettings,
) -> tuple[int, float]:
    """(bytes of the optimizer's state, median seconds of its step), on copies: the model does not move."""
    if not parameters:
        return 0, 0.0
    copies = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    optimizer = build(copies)
    for _ in range(max(1, settings.warm_ups)):
        optimizer.step()
    times = [_seconds(torch, device, optimizer.step) for _ in range(settings.repeats)]
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(_bytes(value) for value in states if isinstance(value, torch.Tensor)), statistics.median(times)


# ---- processes ----

_RANK = """
import json, sys, time
import torch.distributed as dist
path, rank, world, repeats, backend = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
files = dist.FileStore(path, world)
times = []
for repeat in range(repeats):
    ready = dist.PrefixStore(f"ready{repeat}", files)
    ready.add("count", 1)
    while ready.add("count", 0) < world:
        time.sleep(0.001)
    start = time.perf_counter()
    dist.init_process_group(backend, store=dist.PrefixStore(f"group{repeat}", files), rank=rank, world_size=world)
    dist.barrier()
    times.append(time.perf_counter() - start)
    dist.destroy_process_group()
print(json.dumps(times))
"""


def measure_restart_s(command: Sequence[str] | None = None, *, repeats: int = 3) -> float:
    """Median seconds from the start of a worker process to its end, ready to train.

    `command`: starts a worker that exits once it is ready (model built, device reached); by default a python that
    imports torch, which is the floor of every restart. Raises `ProfileFailed`.
    """
    if not 1 <= repeats <= REPEATS_MAX:
        raise ValueError(f"repeats must be 1 to {REPEATS_MAX}, not {repeats}")
    _torch()
    chosen = list(command) if command is not None else [sys.executable, "-c", "import torch; torch.zeros(1).add_(1)"]
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        _finish(_start(chosen), "the worker that was restarted")
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_group_rebuild_s(world_size: int, *, backend: str = "gloo", repeats: int = 3) -> float:
    """Median over the repeats of the slowest worker's seconds to join a new process group, the first barrier included.

    Raises `ProfileFailed` if a worker fails, `ValueError` for a world of less than 2 or more than WORLD_MAX workers.
    """
    if not 2 <= world_size <= WORLD_MAX or not 1 <= repeats <= REPEATS_MAX:
        raise ValueError(f"world_size must be 2 to {WORLD_MAX} and repeats 1 or more, not {world_size} and {repeats}")
    _torch()
    with tempfile.TemporaryDirectory(prefix="chaos-profile-") as folder:
        path = str(Path(folder) / "store")
        workers: list[subprocess.Popen[str]] = []
        try:
            for rank in range(world_size):
                arguments = [path, str(rank), str(world_size), str(repeats), backend]
                workers.append(_start([sys.executable, "-c", _RANK, *arguments]))
            times = [json.loads(_finish(worker, f"worker {rank}")) for rank, worker in enumerate(workers)]
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.communicate()
    slowest: list[float] = [max(column) for column in zip(*times, strict=True)]
    return statistics.median(slowest)


def _start(command: list[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise ProfileFailed(f"{command[0]} cannot be started: {error}") from error


def _finish(process: subprocess.Popen[str], who: str) -> str:
    """Its output. `ProfileFailed` with its last line of errors if it fails or takes longer than PROCESS_TIMEOUT_S."""
    try:
        output, errors = process.communicate(timeout=PROCESS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ProfileFailed(f"{who} was not ready after {PROCESS_TIMEOUT_S:.0f} s and was stopped") from None
    if process.returncode != 0:
        last = errors.strip().splitlines()[-1:] or ["it wrote no error"]
        raise ProfileFailed(f"{who} failed with exit code {process.returncode}: {last[0]}")
    return output


# ---- tensors ----


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise TorchMissing(
            "profiling needs torch, which is not installed here: install the extra `chaos-train[torch]`, or profile on "
            "a machine of this site that has it and hand the planner the file"
        ) from error
    return torch


def _device(torch: Any, name: str) -> Any:
    kind = name.split(":")[0]
    if kind == "npu":
        try:
            import torch_npu  # noqa: F401
        except ImportError as error:
            raise TorchMissing("profiling an npu needs torch_npu: install the extra `chaos-train[npu]`") from error
    if kind != "cpu" and not getattr(torch, kind).is_available():
        raise ProfileFailed(f"device {name} is not available to torch on this machine: use cpu, or check its driver")
    return torch.device(name)


def _seconds(torch: Any, device: Any, run: Callable[[], Any]) -> float:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
    start = time.perf_counter()
    result = run()
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
    seconds = time.perf_counter() - start
    del result  # freed after the clock has stopped
    return seconds


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    return [value] if hasattr(value, "untyped_storage") else []


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_map(part, change) for part in value)
    return change(value) if hasattr(value, "untyped_storage") else value


def _arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())
