"""A training process with a state of any size and steady rounds: what the benchmarks of state transfer train.

Most of its state is frozen, as in the fine-tuning of Chaos VI-E: a round averages a small vector, so that links and
cores are free for what is measured. `--blank`: start with zeros, as a newcomer does whose weights are not the run's.
Every `--pace` seconds a round is ready. After SIGUSR1 the state's digest goes to `--digests` at every fourth round, so
that replicas can be compared; after SIGUSR2 the state goes to `--checkpoint`, for a start with `--load`. Ends with the
daemon.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping

import numpy as np
from blake3 import blake3

from chaos import ChaosError, Coordinator

TRAINED = 16_384
"""Numbers averaged in a round: 64 KiB."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--state-bytes", type=int, required=True)
    parser.add_argument("--tensors", type=int, default=1, help="cut the frozen part into so many arrays")
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of computing in a round")
    parser.add_argument("--blank", action="store_true")
    parser.add_argument("--digests", help="file for the state's digests")
    parser.add_argument("--checkpoint", help="file that the state is written to")
    parser.add_argument("--load", action="store_true", help="begin with the state in --checkpoint")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon is told, not we
    wanted: list[bool] = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
    saving: list[bool] = []
    signal.signal(signal.SIGUSR2, lambda *_: saving.append(True))
    size = max(options.state_bytes // options.tensors, 1)
    generator = np.random.default_rng(1)
    arrays = {f"frozen.{number:06d}": np.zeros(size, dtype=np.uint8) for number in range(options.tensors)}
    arrays["head"] = np.zeros(TRAINED, dtype=np.float32)
    if options.load:
        load(options.checkpoint, arrays)
    elif not options.blank:
        for name, array in arrays.items():
            if name != "head":
                array[...] = np.frombuffer(generator.bytes(array.nbytes), dtype=np.uint8)
    head = arrays["head"]

    def apply(averaged: Mapping[str, np.ndarray], round: int) -> None:
        head[...] -= np.float32(0.01) * averaged["head"]

    try:
        with Coordinator(socket=options.socket, handle_signals=False, connect_s=30.0) as coordinator:
            coordinator.register(arrays=arrays, apply=apply, gradients={"head": np.zeros(TRAINED, dtype=np.float32)})
            while not coordinator.capture_exit_event():
                time.sleep(options.pace)
                coordinator.gradients["head"][...] = head - np.float32(1.0)
                if not coordinator.step(samples=1):
                    break
                if saving:
                    save(options.checkpoint, arrays)
                    saving.clear()
                if wanted and coordinator.round % 4 == 0:
                    tell_digest(options.digests, coordinator.round, arrays)
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def save(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """All arrays in the order of their names, one after the other; appears when it is on the disk."""
    with open(f"{path}.new", "wb") as file:
        for name in sorted(arrays):
            file.write(arrays[name].data.cast("B"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def load(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    with open(path, "rb") as file:
        for name in sorted(arrays):
            file.readinto(arrays[name].data.cast("B"))


def tell_digest(path: str, round_number: int, arrays: Mapping[str, np.ndarray]) -> None:
    """One line: round, digest of all arrays in the order of their names."""
    digest = blake3()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{round_number} {digest.hexdigest()}\n")


if __name__ == "__main__":
    sys.exit(main())
