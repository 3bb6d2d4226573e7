"""The samples of an epoch, dealt to the sites as they train: `DataLoader(dataset, batch_sampler=ElasticSampler(...))`.

What is this site's own: which positions of its lease it has handed to the loader, and what became of them. A batch is
on its way from when the loader asked for it; the next `step(samples=...)` is about the oldest ones on their way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from chaos.data.ledger import TOKEN_MAX, LeaseNote, Ledger, Numbers, Token
from chaos.data.order import shuffled
from chaos.errors import ChaosError
from chaos.frameworks.base import StateItem
from chaos.saying import say

SAMPLES_MAX = 1 << 40
PLACES_MAX = 4096
LEASE_MAX = 1 << 20
TABLE_MAX = 1 << 24
"""Positions that all leases may hold together: 128 MB of shared state."""

AGAIN_MAX = 20
"""So often the batches of a loader that was left may come again before a step is made: who looks into it does so once,
or a few times."""


class ElasticSampler:
    """Every sample of an epoch is trained on once, by some site, however sites come and go.

        sampler = ElasticSampler(len(dataset), batch_size=32)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        coordinator.register(model=model, optimizer=optimizer, sampler=sampler)
        while sampler.epoch < 3 and not coordinator.capture_exit_event():
            for batch in loader:                      # this site's part of what is left of the epoch
                loss_of(batch).backward()
                if not coordinator.step(samples=len(batch)):  # or after several batches, with their sum
                    break

    samples: of the data, which all sites have, in the same order. batch_size: of this site's batches; the last ones of
    an epoch are smaller. seed: of the order, another one in every epoch. ahead: batches that are dealt ahead of those
    done, above what the loader fetches ahead (`num_workers * prefetch_factor`) and, in modes with local steps, above
    those of a round. batch_size, ahead, seed and sites_max must be the same on all sites. sites_max: sites at once.

    Position and leases are part of the shared state: a joiner has them, a checkpoint keeps them, and what a site that
    was lost had not done goes to others. Raises ValueError for numbers that make no sense."""

    def __init__(self, samples: int, batch_size: int, *, seed: int = 0, ahead: int = 8, sites_max: int = 64) -> None:
        for name, value, most in (
            ("samples", samples, SAMPLES_MAX),
            ("batch_size", batch_size, LEASE_MAX),
            ("ahead", ahead, LEASE_MAX),
            ("sites_max", sites_max, PLACES_MAX),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ValueError(f"{name} = {value!r}: must be a whole number from 1 to {most:,}")
        self._samples, self._batch, self._seed, self._sites_max = samples, batch_size, seed, sites_max
        self._lease = batch_size * (ahead + 1)
        if self._lease * sites_max > TABLE_MAX:
            raise ValueError(
                f"{sites_max} sites with {self._lease:,} samples each, batch_size * (ahead + 1), are more than the "
                f"{TABLE_MAX:,} that the shared state holds; deal fewer ahead"
            )
        self.ledger = Ledger(samples=samples, lease=self._lease, least=batch_size, places=sites_max)
        draw = random.SystemRandom()
        self._token: Token = (draw.randrange(1, TOKEN_MAX), draw.randrange(1, TOKEN_MAX))
        self._round_without_data: Callable[[], bool] | None = None
        self._began = False
        """A loader has asked for batches."""
        self._place: int | None = None
        self._popped = 0
        self._drawn: list[int] = []
        """Positions from the head of the lease on that the loader was given. Of these, in this order:"""
        self._seen = self._lost = self._done = 0
        """Done, come to nothing, behind what is computed for the next round; the rest is on its way."""
        self._void = 0
        """Of the batches on their way so many samples come first that are this site's no more."""
        self._withheld = False
        self._open: deque[int] = deque()
        """Of each batch on its way, this site's or not, how many of its samples no step was about."""
        self._cut = self._told_of_cut = False
        """A step was about a part of the oldest one. That was told."""
        self._again = 0
        """So many times in a row the loader was begun anew while no step was made for what it had given."""

    # ---- for the script

    @property
    def epoch(self) -> int:
        """How many epochs are complete: the same on all sites at the end of the same round."""
        return self.ledger.epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Batches of this site's part, until its lease is dry. Takes part in rounds without data until there is
        something to do, or the run has let this site go. Raises ChaosError if nothing ever becomes of its batches."""
        if self._round_without_data is None:
            raise ChaosError("the sampler is not registered: coordinator.register(..., sampler=sampler) comes first")
        self._began = True
        self._count_again(len(self._drawn) - self._settled)
        self._tell_of_a_cut()
        del self._drawn[self._settled :]  # a loader that was left has thrown its batches away
        self._void = 0
        epoch = self.epoch
        while not self._undrawn():
            if not self._round_without_data() or self.epoch != epoch:
                return
        while self.epoch == epoch and (positions := self._undrawn()[: self._batch]):
            self._drawn += positions
            self._open.append(len(positions))
            order = shuffled(np.array(positions, dtype=np.int64), self._samples, seed=self._seed, epoch=epoch)
            yield [int(index) for index in order]

    # ---- for the Coordinator

    def take_part_by(self, round_without_data: Callable[[], bool]) -> None:
        """`round_without_data`: takes part in a round to which this site gives no gradients; False: it has left."""
        self._round_without_data = round_without_data

    def facts(self) -> Sequence[str]:
        return (
            f"sampler of {self._samples} samples, seed {self._seed}, {self._lease} at once in batches of "
            f"{self._batch}, at most {self._sites_max} sites",
        )

    # ---- for the mode

    @property
    def items(self) -> Sequence[StateItem]:
        return self.ledger.items

    @property
    def count(self) -> int:
        return self.ledger.numbers

    def stepped(self, samples: int) -> bool:
        """So many samples, the oldest on their way, are behind the step that was made. Whether their gradient counts:
        not if the run has given some of them to others meanwhile. Raises ValueError for more than there are."""
        self._again = 0
        on_the_way = len(self._drawn) - self._settled
        if samples > on_the_way + self._void:
            if not self._began:
                raise ValueError(
                    f"step(samples={samples}), but no batch was taken from the sampler yet: the loop is over a loader "
                    "without it; DataLoader(dataset, batch_sampler=sampler), of a dataset with an index"
                )
            raise ValueError(
                f"step(samples={samples}), but the sampler has handed out {on_the_way + self._void} that no step was "
                "made for: say how many samples were in the batches since the last step"
            )
        self._close(samples)
        void = min(samples, self._void)
        self._void -= void
        self._done += samples - void
        if void:
            self._lose()
        return not void

    def write(self, numbers: Numbers) -> None:
        """What this site says in the next round; a place, if it has none."""
        place = self._place
        if place is None:
            free = self.ledger.free_places()
            if not free:
                raise ChaosError(
                    f"all {self._sites_max} places of the sampler are taken; a run of more sites needs "
                    "ElasticSampler(sites_max=...), the same on all of them"
                )
            place = random.SystemRandom().choice(free)
        self._withheld = False
        note = LeaseNote(token=self._token, seen=self._seen, lost=self._lost, done=self._done)
        self.ledger.write(note, place, numbers)

    def withheld(self) -> None:
        """What was written is not given, since a number in it is not finite: its samples count as seen, as in a
        training alone, for they would come to nothing again and again."""
        self._withheld = True

    def settle(self, numbers: Numbers) -> int:
        """A round was applied. How many samples it is about, of all sites."""
        done = self.ledger.settle(numbers)
        self.resolve()
        return done

    def resolve(self) -> None:
        """The shared state is that of the end of another round, or the round under way begins again: what became of
        what this site gave?"""
        place = self.ledger.place_of(self._token)
        popped = 0 if place is None else self.ledger.popped(place)
        gone, self._popped = popped - self._popped, popped
        lease = [] if place is None else self.ledger.lease(place).tolist()
        kept = gone in (0, self._settled) and self._drawn[gone:] == lease[: len(self._drawn) - gone]
        if place != self._place or not kept:
            self._void += len(self._drawn) - self._settled
            self._seen = self._lost = self._done = 0
            self._drawn.clear()
        elif gone:
            self._seen = self._lost = self._done = 0
            del self._drawn[:gone]
        elif self._withheld and not self._lost:
            self._seen, self._done = self._seen + self._done, 0
        else:
            self._lose()
        self._place, self._withheld = place, False

    # ---- within

    def _count_again(self, samples: int) -> None:
        """A loop that leaves the last batches without a step would go on for ever, and the other sites wait for it."""
        self._again = self._again + 1 if samples else 0
        if self._again > AGAIN_MAX:
            raise ChaosError(
                f"the sampler has dealt the same {samples} samples {self._again} times, and no step was made for them: "
                "after the loop over the loader make one for the batches that are left, coordinator.step(samples=...) "
                "with their sum, or say that they are not wanted, step(samples=..., skip=True)"
            )

    def _close(self, samples: int) -> None:
        """A step was about so many of the oldest ones."""
        while self._open and samples >= self._open[0]:
            samples -= self._open.popleft()
            self._cut = False
        if self._open and samples:
            self._open[0] -= samples
            self._cut = True

    def _tell_of_a_cut(self) -> None:
        """The loader begins anew, and what no step was about comes again: where that is the rest of a batch, its other
        samples would be trained on twice, or more often."""
        if self._cut and not self._told_of_cut:
            self._told_of_cut = True
            say(
                f"steps were about fewer samples than their batches have, {self._open[0]} of one are left and dealt "
                "once more: a loader takes the sampler as batch_sampler=, since it deals whole batches (not as "
                "sampler=), and step(samples=...) says how many samples a batch has, len(batch)"
            )
        self._open.clear()
        self._cut = False

    @property
    def _settled(self) -> int:
        return self._seen + self._lost + self._done

    def _lose(self) -> None:
        """What was done since the last round comes to nothing."""
        self._lost, self._done = self._lost + self._done, 0

    def _undrawn(self) -> list[int]:
        if self._place is None:
            return []
        left: list[int] = self.ledger.lease(self._place)[len(self._drawn) :].tolist()
        return left
