"""The baseline that stops everybody when a worker of a site dies: all are started again, from a checkpoint that misses
no step.

Kinder than life to it, as torchrun would do it: every step is written to a checkpoint (of one small model, to the
temporary folder), the end of a process is seen at once, and no process has to be placed anew. The small GPT of
`examples/site` trains as replicas over gloo (DistributedDataParallel). As a program: one of its workers.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS_BETWEEN = 5
LIMIT_S = 120.0
LOOK_S = 0.002


def full_restarts(workers: int, kills: int) -> list[float]:
    """Seconds from the SIGKILL of one worker until the first step after the restart is done, for each of the kills.
    Raises `RuntimeError` if a worker ends by itself."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder, killed_s = Path(name), 0.0
        for life in range(kills + 1):
            running = [_start(folder, life, rank, workers) for rank in range(workers)]
            try:
                steps_s = _steps(folder / f"steps-{life}", running)
                if life:
                    found.append(steps_s[0] - killed_s)
                killed_s = time.monotonic()
                running[-1].kill()
                running[-1].wait()
            finally:
                for process in running:
                    process.kill()
                for process in running:
                    process.wait()
    return found


def _start(folder: Path, life: int, rank: int, workers: int) -> subprocess.Popen[bytes]:
    numbers = {"life": life, "rank": rank, "world": workers}
    options = [word for key, value in numbers.items() for word in (f"--{key}", str(value))]
    return subprocess.Popen(
        [sys.executable, str(Path(__file__)), "--folder", str(folder), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,  # whose peer was killed says so at length
    )


def _steps(path: Path, running: list[subprocess.Popen[bytes]]) -> list[float]:
    """When the first steps of this life were done."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if len(lines) >= STEPS_BETWEEN:
            return [float(line) for line in lines]
        ended = [process.poll() for process in running]
        if any(code is not None for code in ended) or time.monotonic() > end_s:
            raise RuntimeError(f"{len(lines)} steps within {LIMIT_S:g} s; exit codes {ended}")
        time.sleep(LOOK_S)


def main() -> None:
    import torch
    import torch.distributed as dist

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("life", "rank", "world"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    folder: Path = given.folder
    sys.path.insert(0, str(ROOT / "examples" / "site"))
    text_model = importlib.import_module("text_model")
    loader_of = importlib.import_module("chaos.worker_group.compute.data").Loader
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting-{given.life}"
    dist.init_process_group("gloo", init_method=meeting, rank=given.rank, world_size=given.world)
    model = torch.nn.parallel.DistributedDataParallel(text_model.layers(64, 6, 4, 64, 0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, checkpoint = 0, folder / "checkpoint"
    if checkpoint.exists():
        found = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    loader = loader_of(text_model.Text(64), global_batch=16, micro_batch=2, seed=1, steps=1 << 20)
    own = range(given.rank, loader.micro_batches, given.world)
    while True:
        for g in own:
            inputs, targets = loader.micro_batch(step, g)
            (text_model.loss(model(inputs), targets) / len(own)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if given.rank == 0:
            new = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.replace(checkpoint)
            with (folder / f"steps-{given.life}").open("a", encoding="utf-8") as file:
                file.write(f"{time.monotonic()}\n")


if __name__ == "__main__":
    main()
