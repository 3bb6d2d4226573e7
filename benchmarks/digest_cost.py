"""What digests and checks cost of a round of 256 MiB: the script looks at its state and gradient, the daemon at sums.

A model of 256 MiB in float32 (as many parameters as a transformer's, in 192 arrays) with AdamW, so a state of 768 MiB,
on one core. Measured each alone, on memory that was written before:

- `look_s`: whether the script has changed anything outside of a round (`OutsideWatch`), in every round.
- `finite_s`: whether the gradient that is given is finite, in every round.
- `digest_s`: the piece of the state that is compared with the other sites', in every fourth round; a round's share of
  it is `digest_round_s`.
- `daemon_finite_s`: whether what a daemon adds up, and the result, are finite: two passes, a chunk at a time, while
  other chunks are on their way.

`script_share` is what the script's checks, which a round waits for, take of a round whose vector goes over a link of
1 Gbit/s in the least possible time (2.1 s); `daemon_share` what the daemon's would, if they did not run beside the
link's work. Beside them a round of two sites on loopback (`loopback_round_s`, see `allreduce`), which takes nothing but
processors, and what the script's checks take of that one.

Bar: `script_share` at most 0.01.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.allreduce import MIB, daemons_measured
from benchmarks.measure import Figures, Spread, timed
from chaos.finite import first_not_finite
from chaos.frameworks.torch import TorchFramework
from chaos.state import State
from chaos.sync import EveryStep
from chaos_protocols.rounds.reduce import cut
from chaos_protocols.rounds.reduce.layout import chunk_bytes_for
from chaos_protocols.rounds.state_check import CHECK_EVERY_ROUNDS, piece_in_turn
from chaos_protocols.wire.encodings import FP32
from chaosd.bulk.vector import is_finite

VECTOR_BYTES = 256 * MIB
ARRAYS = 192
ROUNDS, ROUNDS_SHORT = 50, 12
REPEATS = 15
GIGABIT_BYTES_PER_S = 125e6


def run(*, short: bool, seed: int) -> Figures:
    """See the module; `seed` is not used: what the numbers are does not matter."""
    torch.set_num_threads(1)
    parts = _parts()
    loopback_s = statistics.median(daemons_measured(2, VECTOR_BYTES, ROUNDS_SHORT if short else ROUNDS, FP32).seconds)
    digest_round_s = parts["digest_s"]["median"] / CHECK_EVERY_ROUNDS
    script_s = parts["look_s"]["median"] + parts["finite_s"]["median"] + digest_round_s
    gigabit_s = VECTOR_BYTES / GIGABIT_BYTES_PER_S
    return {
        **parts,
        "digest_round_s": digest_round_s,
        "script_share": script_s / gigabit_s,
        "daemon_share": parts["daemon_finite_s"]["median"] / gigabit_s,
        "loopback_round_s": loopback_s,
        "loopback_script_share": script_s / loopback_s,
    }


def _parts() -> dict[str, Spread]:
    """Seconds of each, at one site."""
    width = VECTOR_BYTES // 4 // ARRAYS
    model = torch.nn.ParameterDict({str(one): torch.nn.Parameter(torch.ones(width)) for one in range(ARRAYS)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    framework = TorchFramework({"model": model}, {"optimizer": optimizer}, {}, set_to_none=True)
    session = EveryStep().start(framework)
    spec = session.contribution
    vector = np.full(spec.size_bytes, 1, dtype=np.uint8)
    state = State(session.items)
    state.digest()  # every page of it is there
    rounds = iter(range(0, 10**9, CHECK_EVERY_ROUNDS))
    chunks = cut(spec, chunk_bytes_for(spec.size_bytes))

    def digest() -> None:
        piece = piece_in_turn(next(rounds), state.spec.size_bytes)
        assert piece is not None
        state.digests(*piece)

    def daemon() -> None:
        for chunk in chunks:
            numbers = vector[chunk.start : chunk.stop].view(chunk.dtype)
            assert is_finite(numbers) and is_finite(numbers)

    calls: dict[str, Callable[[], object]] = {
        "look_s": lambda: framework.changed_outside(1),
        "finite_s": lambda: first_not_finite(vector, spec),
        "digest_s": digest,
        "daemon_finite_s": daemon,
    }
    found = {name: timed(call, repeats=REPEATS) for name, call in calls.items()}
    framework.release()
    return found
