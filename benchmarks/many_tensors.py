"""Many small tensors: what the SDK adds to a round and to registering, a tensor; bound: 3 us a round, 2 s to register.

One site alone behind a stand-in for its daemon, in one process: it takes the contribution and gives it back as the
result, as the daemon of a run of one site does, without hashing it. Nothing is on a link, so what is left is what a
tensor costs, not what a byte costs: `tensors` parameters of 8 numbers each, a plain SGD. The baseline beside it is the
same loop without Chaos, `optimizer.step()` and `optimizer.zero_grad()`; the difference, divided by the number of
tensors, is the figure. All are seconds of the process on a processor, both threads together: waiting for the other
thread costs nothing, and other work on the machine does not count (it still spoils caches).

`round_us_per_tensor`: of `step()`, less the baseline. `register_s`: from `register()` to the first round that may be
computed, the hello with the state spec and its check by the daemon's code included; with `adam_` the same for AdamW,
whose state is three times as many tensors again. `read_us_per_tensor` and so on: the parts of a round.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import Figures, alternating, spread
from chaos import Coordinator
from chaos.collector import held_back
from chaos.frameworks.torch import TorchFramework
from chaos.sync import EveryStep
from chaos_protocols.wire.worker import (
    ApplyResult,
    ResultApplied,
    RoundContributed,
    TrainFrom,
    WorkerHello,
    WorkerMessage,
    WorkerWelcome,
    decode_from_worker,
    encode,
)
from chaosd.worker.arena import Arena

TENSORS, TENSORS_SHORT = 200_000, 20_000
NUMBERS = 8
REPEATS, REPEATS_SHORT = 7, 5
SECONDS_MAX = 120.0
"""For one answer of the stand-in."""


def run(*, short: bool, seed: int) -> Figures:
    """Figures a tensor. The numbers do not matter, so the seed is not used."""
    torch.set_num_threads(1)
    tensors, repeats = (TENSORS_SHORT, REPEATS_SHORT) if short else (TENSORS, REPEATS)
    figures: Figures = {"tensors": tensors, "numbers_per_tensor": NUMBERS}
    figures |= _rounds(tensors, repeats)
    figures |= _parts(tensors, repeats)
    figures["adam_register_s"] = _register_s(tensors, torch.optim.AdamW)
    return figures


class Many(torch.nn.Module):
    """So many parameters, in layers of two as models have them."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Pair() for _ in range(tensors // 2))


class Pair(torch.nn.Module):
    """Two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(NUMBERS))
        self.bias = torch.nn.Parameter(torch.ones(NUMBERS))


def give_gradients(model: torch.nn.Module) -> None:
    """What a backward pass leaves behind: a tensor of its own for each parameter."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)


def _rounds(tensors: int, repeats: int) -> Figures:
    plain, together = Many(tensors), Many(tensors)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, foreach=True)
    optimizer = torch.optim.SGD(together.parameters(), lr=0.1, foreach=True)

    def alone() -> float:
        give_gradients(plain)
        began = time.process_time()
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        return time.process_time() - began

    with _stand_in() as path:
        coordinator = Coordinator(path, handle_signals=False, verbose=False, reconnect_s=0)
        began = time.process_time()
        coordinator.register(together, optimizer)
        register_s = time.process_time() - began

        def step() -> float:
            give_gradients(together)
            began = time.process_time()
            coordinator.step()
            return time.process_time() - began

        samples = alternating({"chaos": step, "torch": alone}, repeats=repeats, warm_up=2)
        coordinator.close(graceful=False)
    added = [(ours - theirs) / tensors * 1e6 for ours, theirs in zip(samples["chaos"], samples["torch"], strict=True)]
    return {
        "register_s": register_s,
        "round_us_per_tensor": spread(added),
        "step_us_per_tensor": spread([one / tensors * 1e6 for one in samples["chaos"]]),
        "torch_us_per_tensor": spread([one / tensors * 1e6 for one in samples["torch"]]),
    }


def _parts(tensors: int, repeats: int) -> Figures:
    """Where the time of a round goes: giving, the update with its result, the look for changes from outside."""
    model = Many(tensors)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    framework = TorchFramework({"model": model}, {"optimizer": optimizer}, {}, set_to_none=True)
    session = EveryStep().start(framework)
    given = np.zeros(session.contribution.size_bytes, dtype=np.uint8)
    result = np.zeros_like(given)
    times: dict[str, list[float]] = {"read": [], "apply": [], "look": []}
    for turn in range(repeats + 2):
        give_gradients(model)
        marks = [time.process_time()]
        framework.changed_outside(turn)
        marks.append(time.process_time())
        session.contribute(given, turn + 1)
        marks.append(time.process_time())
        session.apply(result, turn + 1)
        marks.append(time.process_time())
        if turn >= 2:
            for name, began, ended in zip(("look", "read", "apply"), marks, marks[1:], strict=False):
                times[name].append((ended - began) / tensors * 1e6)
    framework.release()
    return {f"{name}_us_per_tensor": spread(samples) for name, samples in times.items()}


def _register_s(tensors: int, kind: type[torch.optim.Optimizer]) -> float:
    model = Many(tensors)
    optimizer = kind(model.parameters())  # type: ignore[call-arg]
    with _stand_in() as path:
        coordinator = Coordinator(path, handle_signals=False, verbose=False, reconnect_s=0)
        began = time.process_time()
        coordinator.register(model, optimizer)
        took_s = time.process_time() - began
        coordinator.close(graceful=False)
    return took_s


@contextmanager
def _stand_in() -> Iterator[Path]:
    """A socket behind which a thread plays the daemon of a site that is alone."""
    with tempfile.TemporaryDirectory(prefix="chaos") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "w"
        listener.settimeout(SECONDS_MAX)
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener,), daemon=True)
        thread.start()
        yield path
        thread.join(SECONDS_MAX)


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        header, fds, _, _ = socket.recv_fds(connection, 4, 1)
        if header:
            break
        connection.close()  # the SDK looks whether anybody is there, before the model is built
    with connection:
        body = _exactly(connection, int.from_bytes(header, "big"))
        with held_back():  # a daemon's process has none of torch's objects, which the collector looks through here
            hello = decode_from_worker(body)
        assert isinstance(hello, WorkerHello)
        arena = Arena.from_hello(hello, fds[0])  # and its check of the spec
        connection.sendall(encode(WorkerWelcome(site="here", run="many")) + encode(TrainFrom(round=1)))
        try:
            while True:
                match _message(connection):
                    case RoundContributed(round=number):
                        arena.result[:] = arena.contribution
                        connection.sendall(encode(ApplyResult(round=number, sites=1, weight=1.0)))
                    case ResultApplied():
                        pass
        except ConnectionError:
            arena.close()


def _message(connection: socket.socket) -> WorkerMessage | None:
    return decode_from_worker(_exactly(connection, int.from_bytes(_exactly(connection, 4), "big")))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the script is done")
        data += piece
    return bytes(data)
