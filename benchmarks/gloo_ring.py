"""The same averaging by torch's gloo over loopback, without TLS: what `allreduce` is compared with.

One process a rank, one thread each. Each sums its vector with `all_reduce` and divides, `rounds` times, in memory that
was touched before; the parent gets the seconds of each round at rank 0 and the processor seconds of all ranks together.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from chaos_lab.children import free_port

WARM_UP = 2
ANSWER_S = 300.0


@dataclass(frozen=True, kw_only=True)
class GlooRounds:
    """`seconds`: of each round at rank 0; `cpu_s`: of all ranks, a round."""

    seconds: list[float]
    cpu_s: float


def gloo_rounds(ranks: int, vector_bytes: int, rounds: int) -> GlooRounds:
    """Raises RuntimeError where a rank does not end well."""
    context = multiprocessing.get_context("spawn")
    port = free_port()
    ends: list[Connection] = []
    processes = []
    for rank in range(ranks):
        near, far = context.Pipe()
        process = context.Process(target=_rank, args=(far, rank, ranks, port, vector_bytes, rounds))
        process.start()
        far.close()
        ends.append(near)
        processes.append(process)
    try:
        answers = []
        for rank, end in enumerate(ends):
            if not end.poll(ANSWER_S):
                raise RuntimeError(f"gloo's rank {rank} does not answer for {ANSWER_S:g} s")
            try:
                answers.append(end.recv())
            except EOFError:
                raise RuntimeError(f"gloo's rank {rank} ended before its rounds were done") from None
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    return GlooRounds(seconds=answers[0][0], cpu_s=sum(cpu_s for _, cpu_s in answers) / rounds)


def _rank(pipe: Connection, rank: int, ranks: int, port: int, vector_bytes: int, rounds: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    vector = torch.full((vector_bytes // 4,), float(rank + 1))
    seconds: list[float] = []
    used_s = 0.0
    for number in range(WARM_UP + rounds):
        vector.fill_(rank + 1.0)
        dist.barrier()
        before_s, began = _cpu_s(), time.perf_counter()
        dist.all_reduce(vector)
        vector /= ranks
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - began)
            used_s += _cpu_s() - before_s
    if abs(float(vector[-1]) - (ranks + 1) / 2) > 1e-5:
        raise RuntimeError(f"gloo averaged to {float(vector[-1])}")
    dist.destroy_process_group()
    pipe.send((seconds, used_s))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
