"""A worker's first message to its controller: who it is, and what it would train."""

from __future__ import annotations

import torch

from chaos.worker_group.chain.vectors import Vectors
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.exchange.devices import HOST, Device
from chaos.worker_group.exchange.line import ControlLine
from chaos.worker_group.script import script_digest
from chaos_protocols.worker_group.messages import VERSION, GroupHello, LayerReport, RunSpecs
from chaos_protocols.worker_group.said import NotesSpec


def greeting(
    line: ControlLine,
    loader: Loader,
    reports: tuple[LayerReport, ...],
    *,
    digest: str,
    clip_norm: float | None = None,
    copies: int = 0,
    vectors: Vectors | None = None,
    notes: NotesSpec | None = None,
    device: Device = HOST,
    every: int = 0,
    code: str = "",
) -> GroupHello:
    """A worker's first message. `digest`, `code`: of what is trained, and computed; `vectors`: of a run of
    institutions; `notes`: of its rounds, for the controller to write; `every`: local steps of a round."""
    samples = float(loader.micro_batches * loader.micro_batch_size)
    run = None
    if vectors is not None:
        weight = samples * max(1, every)
        run = RunSpecs(state=vectors.state, contribution=vectors.contribution, weight=weight, notes=notes)
    return GroupHello(
        version=VERSION,
        token=line.token,
        worker=line.worker,
        torch=str(torch.__version__),
        model=digest,
        layers=reports,
        micro_batches=loader.micro_batches,
        micro_batch_size=loader.micro_batch_size,
        memory_bytes=device.memory_bytes(),
        clip_norm=clip_norm,
        optimizer_copies=copies,
        run=run,
        every=every,
        samples=len(loader.dataset),
        script=script_digest(),
        code=code,
    )
