"""Shared data: every sample of an epoch is trained on exactly once, whoever comes, goes, dies, or gives nothing."""

from __future__ import annotations

import collections
import itertools
import multiprocessing.resource_tracker
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos import Coordinator, DiLoCo, EveryStep, LocalSGD, Refused
from chaos.data import ElasticSampler
from chaos.data.ledger import ABSENT_ROUNDS_MAX
from chaos.data.order import shuffled
from chaos.sync import SyncMode
from chaos.sync.base import IDLE_WEIGHT
from chaos.testing import LocalRun

multiprocessing.resource_tracker.ensure_running()  # stays for as long as the process: no test has left it open


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000, 4097])
def test_the_order_of_an_epoch_is_a_permutation_another_one_each_time(count: int) -> None:
    orders = [shuffled(np.arange(count), count, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(count))
    if count >= 64:
        assert len({tuple(order.tolist()) for order in orders}) == 4
        assert np.array_equal(shuffled(np.array([7, 3]), count, seed=0, epoch=0), orders[0][[7, 3]])


class Model:
    """A run by arithmetic alone: what each site says is averaged with its weight, as float64, as the daemons do."""

    def __init__(self, samples: int, batch: int, ahead: int) -> None:
        self.samples, self.arguments = samples, {"batch_size": batch, "ahead": ahead, "sites_max": 8}
        self.sites: list[Simulated] = []
        self.rounds = 0
        self.counted: list[collections.Counter[tuple[int, int]]] = []

    def join(self) -> None:
        site = Simulated(self)
        if self.sites:
            site.take_state_of(self.sites[0])
        self.sites.append(site)

    def until_all_have_a_place(self) -> None:
        """Two that have drawn the same free place draw again in the next round."""
        for _ in range(100):
            self.round(set())
            if all(self.sites[0].sampler.ledger.place_of(site.sampler._token) is not None for site in self.sites):
                return
        raise AssertionError("no place for one of the sites in 100 rounds")

    def round(
        self, absent: set[int], withheld: set[int] | frozenset[int] = frozenset(), *, void: bool = False, slow: int = -1
    ) -> None:
        """`absent`: whose contribution comes too late; `withheld`: whose is not finite; `slow`: computes what it
        computed in the round before."""
        for index, site in enumerate(self.sites):
            if index != slow or not site.is_slow:
                site.compute()
            site.is_slow = index == slow
        given = []
        for index, site in enumerate(self.sites):
            numbers = np.zeros(site.sampler.count)
            site.sampler.write(numbers)
            if index in withheld:
                site.sampler.withheld()
            if index not in absent | withheld:
                given.append((float(site.under_way) or IDLE_WEIGHT, numbers, site))
        if not given or void:
            for site in self.sites:
                site.sampler.resolve()
                site.batch.clear()
            return
        total = sum(weight for weight, _, _ in given)
        average = sum((weight * numbers for weight, numbers, _ in given), np.zeros(given[0][1].size)) / total
        epoch = self.sites[0].sampler.epoch
        applied = [sample for _, _, site in given for sample in site.batch if site.gives]
        seen = [sample for index in withheld for sample in self.sites[index].batch if self.sites[index].gives]
        while len(self.counted) <= epoch:
            self.counted.append(collections.Counter())
        self.counted[epoch].update(applied)
        self.seen_without_gradient(epoch, seen)
        for site in self.sites:
            site.sampler.settle(average)
            site.batch.clear()
        self.rounds += 1
        states = {tuple(item.get().tobytes() for item in site.sampler.items) for site in self.sites}
        assert len(states) == 1, "the same at all sites"

    def seen_without_gradient(self, epoch: int, samples: list[Any]) -> None:
        self.counted[epoch].update(dict.fromkeys(samples, 0))


class Simulated:
    def __init__(self, model: Model) -> None:
        self.sampler = ElasticSampler(model.samples, **model.arguments)
        self.sampler.take_part_by(lambda: False)
        self.batches: Iterator[list[int]] = iter(())
        self.fetched: collections.deque[list[int]] = collections.deque()
        self.batch: list[Any] = []
        self.under_way, self.gives, self.is_slow = 0, True, False

    def take_state_of(self, other: Simulated) -> None:
        for mine, theirs in zip(self.sampler.items, other.sampler.items, strict=True):
            mine.put(theirs.get().copy())
        self.sampler.resolve()

    def compute(self) -> None:
        """A batch, with two more fetched ahead, as a loader does; a new loader when it is dry."""
        if not self.fetched:
            self.batches = iter(self.sampler)
        while len(self.fetched) < 3 and (batch := next(self.batches, None)) is not None:
            self.fetched.append(batch)
        self.under_way, self.gives = 0, True
        if self.fetched:
            batch = self.fetched.popleft()
            self.gives = self.sampler.stepped(len(batch))
            self.batch = [(self.sampler.epoch, index) for index in batch]
            self.under_way = len(batch) if self.gives else 0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["round", "round", "round", "join", "leave", "void", "cut"]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(samples=st.integers(1, 90), batch=st.integers(1, 7), ahead=st.integers(1, 4), events=EVENTS)
def test_no_sample_is_lost_or_done_twice_however_sites_come_and_go(
    samples: int, batch: int, ahead: int, events: list[tuple[str, int, int]]
) -> None:
    """Rounds in which some come too late, once or for long, void rounds, joins, deaths with a lease; then two epochs to
    their end."""
    model = Model(samples, batch, ahead)
    model.join()
    for kind, first, second in events:
        if kind == "join" and len(model.sites) < 6:
            model.join()
        elif kind == "leave" and len(model.sites) > 1:
            model.sites.pop(first % len(model.sites))
        elif kind == "cut":  # it computes for so long that its lease is given to others
            for _ in range(ABSENT_ROUNDS_MAX + second % 2):
                model.round({first}, slow=first)
        else:
            model.round({first, second} if first < 5 else set(), void=kind == "void")
    target = model.sites[0].sampler.epoch + 2
    for _ in range(4000):
        if model.sites[0].sampler.epoch >= target:
            break
        model.round(set())
    assert model.sites[0].sampler.epoch >= target, "an epoch ends"
    for epoch in range(target):
        assert model.counted[epoch] == dict.fromkeys(((epoch, index) for index in range(samples)), 1), epoch


def test_samples_whose_gradient_is_not_finite_count_as_seen_and_hold_nobody_up() -> None:
    model = Model(40, 3, 2)
    model.join()
    model.join()
    while model.sites[0].sampler.epoch < 1:
        model.round(set(), {0} if model.rounds % 2 else set())
        assert model.rounds < 200
    assert set(model.counted[0]) == {(0, index) for index in range(40)}
    assert set(model.counted[0].values()) == {0, 1}, "once, or never with a gradient; none twice"


def test_two_that_claim_one_place_at_once_are_both_told_no() -> None:
    first, second = (ElasticSampler(8, 2, sites_max=1) for _ in range(2))
    given = [np.zeros(first.count) for _ in range(2)]
    for sampler, numbers in zip((first, second), given, strict=True):
        sampler.write(numbers)
    for sampler in (first, second):
        sampler.settle((given[0] + given[1]) / 2)
        assert sampler.ledger.free_places() == [0]
    for sampler in (first, second):
        sampler.settle(given[1] / 3)
    assert first.ledger.place_of(second._token) == 0 and first.ledger.place_of(first._token) is None
    with pytest.raises(Exception, match="all 1 places of the sampler are taken"):
        first.write(np.zeros(first.count))


def test_a_step_about_batches_of_which_others_have_one_now_comes_to_nothing_as_a_whole() -> None:
    """Two batches of an accumulated gradient: the second is of a new lease, and is dealt again."""
    model = Model(40, 2, 2)
    model.join()
    model.round(set())
    sampler = model.sites[0].sampler
    first = next(iter(sampler))
    for _ in range(ABSENT_ROUNDS_MAX):
        sampler.settle(np.zeros(sampler.count))
    numbers = np.zeros(sampler.count)
    sampler.write(numbers)
    sampler.settle(numbers)  # a place again
    sampler._drawn += sampler._undrawn()[:2]
    assert len(first) == 2 and not sampler.stepped(4)
    sampler.write(numbers)
    assert sampler.settle(numbers) == 0, "nothing is done"
    given = np.unpackbits(sampler.ledger._given, bitorder="little")[:40]
    assert given.sum() == 6, "no more than the lease"


def test_the_lease_of_one_that_is_silent_is_free_again() -> None:
    model = Model(20, 2, 2)
    model.join()
    model.join()
    model.until_all_have_a_place()
    held = [model.sites[0].sampler.ledger.lease(place).size for place in range(8)]
    assert sum(count > 0 for count in held) == 2
    gone = model.sites.pop()
    for _ in range(ABSENT_ROUNDS_MAX):
        assert model.sites[0].sampler.ledger.place_of(gone.sampler._token) is not None
        model.round(set())
    assert model.sites[0].sampler.ledger.place_of(gone.sampler._token) is None


# ---- with the SDK


class Trained:
    """A training that notes which samples its steps were made of."""

    def __init__(
        self, samples: int, sync: SyncMode, *, epochs: int = 2, leave_after: int = 0, workers: int = 0
    ) -> None:
        self.samples, self.sync, self.epochs = samples, sync, epochs
        self.leave_after, self.workers = leave_after, workers
        self.weights = np.zeros(samples)
        self.began = threading.Event()
        self.mine: list[int] = []
        self.rounds: list[int] = []

    def __call__(self, socket: Path | None) -> list[float]:
        sampler = ElasticSampler(self.samples, 3, seed=5, ahead=6)
        with Coordinator(
            socket, standalone=socket is None, verbose=False, handle_signals=False, reconnect_s=0
        ) as coordinator:
            coordinator.register(arrays={"w": self.weights}, apply=self.apply, sync=self.sync, sampler=sampler)
            while sampler.epoch < self.epochs:
                for batch in self.loader(sampler):
                    self.began.set()
                    self.mine += batch
                    np.add.at(coordinator.gradients["w"], batch, 1.0 / len(batch))
                    assert coordinator.step(samples=len(batch))
                    if self.leave_after and len(self.mine) >= self.leave_after:
                        return self.weights.tolist()
        return self.weights.tolist()

    def loader(self, sampler: ElasticSampler) -> Iterator[list[int]]:
        if not self.workers:
            yield from sampler
            return
        from torch.utils.data import DataLoader

        dataset = list(range(self.samples))
        yield from DataLoader(dataset, batch_sampler=sampler, num_workers=self.workers, collate_fn=list)

    def apply(self, mean: Mapping[str, Any], round: int) -> None:
        self.weights -= mean["w"]


def test_alone_an_epoch_is_every_sample_once() -> None:
    script = Trained(20, EveryStep(), epochs=3)
    script(None)
    assert collections.Counter(script.mine) == dict.fromkeys(range(20), 3)
    assert script.mine[:20] != script.mine[20:40], "in another order"


@pytest.mark.parametrize("sync", [EveryStep(), LocalSGD(every=4), DiLoCo(every=3)], ids=["every", "local", "diloco"])
def test_sites_share_each_epoch_and_end_it_together(sync: SyncMode) -> None:
    scripts = [Trained(50, sync, epochs=2) for _ in range(3)]
    with LocalRun(sites=3) as run:
        first, second, third = run.together(*scripts)
    assert first == second == third
    counted = collections.Counter(itertools.chain.from_iterable(script.mine for script in scripts))
    assert counted == dict.fromkeys(range(50), 2)
    assert min(len(script.mine) for script in scripts) > 15, "shared evenly"


def test_one_leaves_in_the_middle_and_another_joins_and_nothing_is_lost() -> None:
    """What the leaver had not done of its lease goes to others."""
    stays, joins = (Trained(60, EveryStep(), epochs=3) for _ in range(2))
    leaves = Trained(60, EveryStep(), leave_after=9)

    def late(socket: Path) -> list[float]:
        assert leaves.began.wait(60)
        return joins(socket)

    with LocalRun(sites=2) as run:
        first, _, third = run.together(stays, leaves, late)
    assert first == third
    counted = collections.Counter(stays.mine + leaves.mine + joins.mine)
    assert counted == dict.fromkeys(range(60), 3)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_workers_of_a_loader_fetch_ahead_and_nothing_is_done_twice(start: str) -> None:
    torch = pytest.importorskip("torch", reason="a DataLoader")
    before = torch.multiprocessing.get_start_method(allow_none=True)
    torch.multiprocessing.set_start_method(start, force=True)
    try:
        script = Trained(30, EveryStep(), epochs=1, workers=2)
        script(None)
    finally:
        torch.multiprocessing.set_start_method(before, force=True)
    assert collections.Counter(script.mine) == dict.fromkeys(range(30), 1)


def test_a_loader_that_was_left_in_the_middle_gives_its_batches_again() -> None:
    sampler = ElasticSampler(12, 2, ahead=3)
    with Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator:
        coordinator.register(arrays={"w": np.zeros(1)}, apply=lambda mean, round: None, sampler=sampler)
        first = [next(batches) for batches in [iter(sampler)] for _ in range(3)]
        coordinator.step(samples=2)
        again = [next(batches) for batches in [iter(sampler)] for _ in range(2)]
        assert again == first[1:]
        with pytest.raises(ValueError, match=r"samples=5\), but the sampler has handed out 4"):
            coordinator.step(samples=5)
        with pytest.raises(ValueError, match=r"step\(samples=len\(batch\)\)"):
            coordinator.step()


def test_sites_with_another_sampler_are_told_both() -> None:
    began, told = threading.Event(), threading.Event()

    def first(socket: Path) -> None:
        sampler = ElasticSampler(30, 3)
        with Coordinator(socket, verbose=False, handle_signals=False, reconnect_s=0) as coordinator:
            coordinator.register(arrays={"w": np.zeros(1)}, apply=lambda mean, round: None, sampler=sampler)
            while not told.is_set():
                for batch in sampler:
                    coordinator.step(samples=len(batch))
                    began.set()

    def second(socket: Path) -> None:
        assert began.wait(60)
        try:
            with Coordinator(socket, verbose=False, handle_signals=False, reconnect_s=0) as coordinator:
                with pytest.raises(Refused, match=r"'sampler of 3[01] samples, seed 0, 27 at once in batches of 3"):
                    coordinator.register(
                        arrays={"w": np.zeros(1)}, apply=lambda mean, round: None, sampler=ElasticSampler(31, 3)
                    )
        finally:
            told.set()

    with LocalRun(sites=1) as run:
        run.together(first, second)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"samples": 0, "batch_size": 1}, "samples = 0"),
        ({"samples": 5, "batch_size": True}, "batch_size = True"),
        ({"samples": 5, "batch_size": 2, "ahead": 0}, "ahead = 0"),
        ({"samples": 5, "batch_size": 1 << 18, "sites_max": 64}, "deal fewer ahead"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ElasticSampler(**arguments)


def test_a_sampler_that_is_not_registered_says_so() -> None:
    with pytest.raises(Exception, match=r"coordinator\.register\(\.\.\., sampler=sampler\)"):
        next(iter(ElasticSampler(4, 2)))
