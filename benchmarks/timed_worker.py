"""What the training processes of benchmarks with timed steps have in common: after each step a line goes to a file,
unix time, steps of the run, rounds. They end with the daemon.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaos import ChaosError, Coordinator
from chaos.sync import SyncMode


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """For the arguments that each of them has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--numbers", type=int, required=True, help="float32 numbers that are trained")
    parser.add_argument("--times", type=Path, required=True)
    return parser


def train(
    options: argparse.Namespace,
    mode: SyncMode,
    register: Callable[[Coordinator], None],
    compute: Callable[[Coordinator], None],
) -> int:
    """Steps until the daemon ends; `compute` is what a step does before its round. The exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon is told, not we
    try:
        with (
            Coordinator(socket=options.socket, handle_signals=False, connect_s=30.0, sync=mode) as coordinator,
            options.times.open("a") as times,
        ):
            register(coordinator)
            while not coordinator.capture_exit_event():
                compute(coordinator)
                if not coordinator.step():
                    break
                times.write(f"{time.time():.4f} {coordinator.steps} {coordinator.round}\n")
                times.flush()
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
