"""A data set is the script's own code: for the samples of a micro-batch it may take longer than a pass ever took."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.integration.site_training import Points, make_model, make_optimizer

from chaos.worker_group.chain.layers import chain
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.interpreter import StepRun, Task
from chaos.worker_group.compute.measuring import measure
from chaos_protocols.streams import ForwardPass, Message, Share
from chaos_protocols.worker_group.suspicion import Reading, Suspicion, Work

LOSS = torch.nn.functional.cross_entropy


@pytest.mark.parametrize("part", ["first", "last", "both"])
def test_a_data_set_may_take_longer_for_one_sample_than_a_pass_ever_took(part: str) -> None:
    """A file on a disk of the network that comes after two seconds was a worker that hangs in its forward pass."""
    held = chain(list(make_model()))
    for layer in held:
        layer.train_with(make_optimizer)
    loader = Loader(Points(), global_batch=8, micro_batch=4)
    entering = measure(held, LOSS, loader).boundaries
    last = len(held)
    first, stop = {"first": (0, 1), "last": (last - 1, last), "both": (0, last)}[part]
    words, suspicion, clock = [(Work.OUTSIDE, 0)], Suspicion(1.0), itertools.count()
    read, suspected = list[int](), list[str]()

    def doing(work: Work, peer: int = -1) -> None:
        words.append((work, len(words)))
        look()

    def look() -> None:
        work, count = words[-1]
        reading = Reading(count=count, work=work, peer=-1, beat=0)
        suspected.extend(each.reason for each in suspicion.observe(0.1 * next(clock), {0: reading}))

    def slow(g: int) -> tuple[torch.Tensor, torch.Tensor]:
        read.append(g)
        for _ in range(30 if g == 1 else 1):  # of a tenth of a second
            look()
        value, target = loader.micro_batch(0, g)
        return value, target

    stream = tuple(ForwardPass(g, first, stop) for g in range(2))
    task = Task(
        share=Share(first_layer=first, last_layer=stop, stream=stream),
        layers=held, loss=LOSS, boundaries=entering, me=0, groups=None, seed=1, micro_batches=2,
    )  # fmt: skip
    run = StepRun(task, 0, slow, doing)
    if first:
        run._values |= {Message(False, g, first): torch.zeros(entering[first][0]) for g in range(2)}
    run.run()
    assert read == [0, 1] and not suspected
    assert [work for work, _ in words].count(Work.FORWARD) == 2
