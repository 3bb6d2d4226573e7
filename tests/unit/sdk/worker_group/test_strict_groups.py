"""The real interpreter over groups as strict as nccl: in the order of `message_order` every plan comes to its end with
the bits of one process, and what such a backend would refuse is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.integration import site_training
from tests.rigs.strict_groups import Fabric, Refused, StrictGroups
from tests.unit.planner.pipelines.random_plans import random_cluster, random_model, random_plan
from tests.unit.sdk.worker_group.test_groups import together

from chaos.worker_group.chain.layers import Layer, chain
from chaos.worker_group.compute.data import Loader
from chaos.worker_group.compute.interpreter import StepRun, Task
from chaos.worker_group.compute.measuring import measure
from chaos.worker_group.exchange.channels import GroupFailed
from chaos.worker_group.session import pair_of, stream_of_one
from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.search.reroute import route_around
from chaos_planner.pipelines.streams.compile import streams_of
from chaos_protocols.message_order import message_order, orders_of
from chaos_protocols.streams import Share
from chaosd.worker_group.lower import lower

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS, MICRO_BATCHES = site_training.LAYERS, 8
LOSS = torch.nn.functional.cross_entropy


def even(pipelines: int, stages: int) -> ExecutionPlan:
    """As `chaosd run --dp --pp` begins."""
    cuts = [LAYERS * i // stages for i in range(stages + 1)]
    made = [
        Pipeline(
            stages=tuple(
                Stage(worker=p * stages + s, first_layer=cuts[s], last_layer=cuts[s + 1]) for s in range(stages)
            ),
            micro_batches=MICRO_BATCHES * (p + 1) // pipelines - MICRO_BATCHES * p // pipelines,
        )
        for p in range(pipelines)
    ]
    return ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=made)


def shares_of(plan: ExecutionPlan, lost: Sequence[int] = (), seed: int = 0) -> dict[int, Share]:
    """`lost`: rerouted around."""
    rng = random.Random(seed)
    costs = Costs(random_model(rng, LAYERS, MICRO_BATCHES), random_cluster(rng, 9, uniform=True))
    for worker in lost:
        plan = route_around(plan, [worker], costs)
    return lower(plan, streams_of(plan, costs))


class Site:
    """The training of `site_training` without dropout: random numbers are a process's, and workers here are threads."""

    def __init__(self) -> None:
        self.loader = Loader(site_training.Points(), global_batch=16, micro_batch=2, seed=7, steps=1)
        self.boundaries = measure(self.layers(), LOSS, self.loader).boundaries

    @staticmethod
    def layers() -> list[Layer]:
        layers = chain(list(site_training.make_model(dropout=0.0)))
        for layer in layers:
            layer.train_with(site_training.make_optimizer)
        return layers

    def run_of(self, share: Share, me: int = 0, groups: Any = None, order: Sequence[Any] = ()) -> StepRun:
        task = Task(
            share=share,
            layers=self.layers(),
            loss=LOSS,
            boundaries=self.boundaries,
            me=me,
            groups=groups,
            seed=7,
            micro_batches=MICRO_BATCHES,
            order=order,
        )
        return StepRun(task, 0, lambda g: pair_of(self.loader.micro_batch(0, g)), lambda *_, **__: None)

    def alone(self) -> list[torch.Tensor]:
        run = self.run_of(Share(first_layer=0, last_layer=LAYERS, stream=stream_of_one(LAYERS, MICRO_BATCHES)))
        run.run()
        return [run.sums.total(layer) for layer in range(LAYERS)]

    def over_strict_groups(self, shares: dict[int, Share], *, in_order: bool) -> list[Any]:
        """A thread for each worker; the runs, or what was raised."""
        fabric = Fabric({worker: f"cuda:{worker}" for worker in shares})
        orders = orders_of(message_order({worker: share.stream for worker, share in shares.items()}))
        made = {worker: StrictGroups(fabric, worker) for worker in shares}
        for worker, share in shares.items():
            made[worker].build(share.groups(worker))

        def work(worker: int, run: StepRun) -> StepRun:
            try:
                run.run()
            except BaseException:
                made[worker].sever()
                raise
            made[worker].ended()
            return run

        runs = [
            (worker, self.run_of(share, worker, made[worker], orders.get(worker, ()) if in_order else ()))
            for worker, share in shares.items()
        ]  # here: the models of threads would draw from one generator
        return together(*(lambda w=worker, r=run: work(w, r) for worker, run in runs))  # type: ignore[misc]


def check(site: Site, shares: dict[int, Share]) -> None:
    runs = site.over_strict_groups(shares, in_order=True)
    expected = site.alone()
    held = 0
    for (worker, share), run in zip(shares.items(), runs, strict=True):
        assert isinstance(run, StepRun), (worker, run)
        for layer in range(share.first_layer, share.last_layer):
            assert torch.equal(run.sums.total(layer), expected[layer]), (worker, layer)
            held += 1
    assert held >= LAYERS


@pytest.mark.parametrize(("dp", "pp"), [(2, 2), (1, 3), (4, 1), (3, 2), (2, 3), (1, 6)])
def test_plans_as_they_begin_come_to_their_end_in_one_order(dp: int, pp: int) -> None:
    check(Site(), shares_of(even(dp, pp)))


@pytest.mark.parametrize("lost", [(1,), (0,), (3,), (1, 2)])
def test_plans_around_lost_workers_do_as_well(lost: tuple[int, ...]) -> None:
    check(Site(), shares_of(even(3, 2) if len(lost) > 1 else even(2, 2), lost))


@pytest.mark.parametrize("seed", range(6))
def test_pipelines_of_every_look_do_as_well(seed: int) -> None:
    rng = random.Random(seed)
    check(Site(), shares_of(random_plan(rng, rng.randint(2, 6), LAYERS, MICRO_BATCHES), seed=seed))


def test_as_workers_come_to_them_messages_would_stand_for_ever() -> None:
    """What sockets carry, where every direction is by itself: so the order is needed."""
    found = Site().over_strict_groups(shares_of(even(1, 3)), in_order=False)
    assert any(isinstance(each, Refused) and "begun in different orders" in str(each) for each in found), found


def two(carries: str = "cpu", devices: tuple[str, str] = ("cuda:0", "cuda:1")) -> tuple[StrictGroups, StrictGroups]:
    fabric = Fabric(dict(enumerate(devices)), carries)
    made = StrictGroups(fabric, 0), StrictGroups(fabric, 1)
    for each in made:
        each.build([(0, 1)])
    return made


def test_two_workers_of_one_device_have_no_group() -> None:
    with pytest.raises(Refused, match="workers 0 and 1 have one device, cuda:0"):
        two(devices=("cuda:0", "cuda:0"))


def test_memory_of_the_host_is_not_carried() -> None:
    first, _ = two(carries="cuda")
    with pytest.raises(Refused, match="a tensor on cpu: what lies on cuda is carried"):
        first.send((0, 1), 1, torch.zeros(2))


def test_a_group_that_was_severed_carries_nothing_and_frees_who_waits() -> None:
    first, second = two()
    awaited = first.receive((0, 1), 1, torch.zeros(2))
    second.sever()
    with pytest.raises(GroupFailed, match="severed"):
        second.send((0, 1), 0, torch.ones(2))
    with pytest.raises(GroupFailed, match="worker 1 is gone"):
        first.wait(awaited)


def test_two_ends_that_differ_are_refused() -> None:
    first, second = two()
    first.send((0, 1), 1, torch.zeros(3))
    with pytest.raises(Refused, match=r"3 torch.float32 are sent and 2 torch.float32 awaited"):
        second.wait(second.receive((0, 1), 0, torch.zeros(2)))


def test_two_sends_that_meet_are_refused_unless_they_begin_with_their_receives() -> None:
    first, second = two()
    sides: list[Callable[[], Any]] = []
    for mine, peer in ((first, 1), (second, 0)):
        mine.send((0, 1), peer, torch.zeros(2))
        sides.append(lambda m=mine, p=peer: m.wait(m.receive((0, 1), p, torch.zeros(2))))  # type: ignore[misc]
    assert all(isinstance(each, Refused) for each in together(*sides))
    first, second = two()
    got = torch.zeros(2), torch.zeros(2)

    def both(mine: StrictGroups, me: int) -> None:
        with mine.at_once():
            mine.send((0, 1), 1 - me, torch.full((2,), float(me)))
            awaited = mine.receive((0, 1), 1 - me, got[me])
        mine.wait(awaited)

    assert together(lambda: both(first, 0), lambda: both(second, 1)) == [None, None]
    assert [float(each[0]) for each in got] == [1.0, 0.0]


def test_a_message_for_a_worker_that_has_ended_is_refused() -> None:
    first, second = two()
    awaited = first.receive((0, 1), 1, torch.zeros(2))
    second.ended()
    with pytest.raises(Refused, match="worker 0 has a message for worker 1, which has ended"):
        first.wait(awaited)
