"""Which samples a micro-batch holds, as a function of (seed, step, micro-batch): every worker reads what it needs.

An epoch is a permutation of the samples, computed for one position in constant time and memory (a Feistel network over
the next even number of bits, walked until it falls inside; Black and Rogaway 2002, "Ciphers with arbitrary finite
domains"). Samples that do not fill the last global batch of an epoch are left out of that epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from chaos.worker_group.compute.seeding import DATA, seed_of, seeded

FEISTEL_ROUNDS = 4

UNSTEPPED_MAX = 1000
"""Batches in a row without a step: more than anything that looks ahead takes."""


class Permutation:
    """A permutation of 0..size-1 that is told by its key."""

    def __init__(self, size: int, key: bytes) -> None:
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._keys = [hashlib.blake2b(key + bytes([r]), digest_size=16).digest() for r in range(FEISTEL_ROUNDS)]

    def __getitem__(self, position: int) -> int:
        """Where `position` goes."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} is not in 0..{self.size - 1}")
        value = self._walk(position)
        while value >= self.size:  # on average less than 4 times: the domain is at most 4 times as large
            value = self._walk(value)
        return value

    def _walk(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for key in self._keys:
            mixed = hashlib.blake2b(right.to_bytes(8, "big"), digest_size=8, key=key).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "big") & self._mask)
        return left << self._half | right


@dataclass(frozen=True, slots=True)
class Batch:
    """The global batch of one step: a handle, from which each worker reads its own micro-batches."""

    loader: Loader

    def micro_batch(self, step: int, number: int) -> Any:
        """The samples of micro-batch `number` of step `step` (0 for the first), collated."""
        return self.loader.micro_batch(step, number)


class Loader:
    """Iterates over steps; made by `Coordinator.loader`."""

    def __init__(
        self, dataset: Any, *, global_batch: int, micro_batch: int, seed: int = 0, steps: int | None = None
    ) -> None:
        """Raises ValueError for a batch that is no number of micro-batches, or larger than the data set, for a seed of
        more than 64 bits, and for a data set that cannot be read by number."""
        if micro_batch < 1 or global_batch < micro_batch or global_batch % micro_batch:
            raise ValueError(
                f"a global batch of {global_batch} samples cannot be cut into micro-batches of {micro_batch}; make it "
                "a multiple"
            )
        if isinstance(dataset, torch.utils.data.DataLoader | torch.utils.data.IterableDataset) or not all(
            hasattr(dataset, name) for name in ("__getitem__", "__len__")
        ):
            raise ValueError(
                f"{type(dataset).__name__} cannot be read by number: loader() takes a data set that has dataset[i] and "
                "len(dataset), and makes the batches itself"
            )
        if len(dataset) < global_batch:
            raise ValueError(
                f"the data set has {len(dataset)} samples and a step takes {global_batch}; make global_batch smaller"
            )
        if not -(1 << 63) <= seed < 1 << 63:
            raise ValueError(f"seed={seed}: a seed has at most 64 bits, from -2**63 to 2**63 - 1")
        self.dataset, self.seed = dataset, seed
        self.micro_batches, self.micro_batch_size = global_batch // micro_batch, micro_batch
        self.steps_an_epoch = len(dataset) // global_batch
        self.steps = self.steps_an_epoch if steps is None else steps
        """How many updates the training has in all."""
        self.step = 0
        """The next one; set by the model, whose state it belongs to."""
        self.passed_over = 0
        """Global batches that came to nothing: the step has those that follow them. Set as `step`."""
        self.ended = False
        self.part, self.parts = 0, 1
        """Which part of each micro-batch this process reads, of how many."""
        self._epoch: tuple[int, Permutation] | None = None

    @property
    def facts(self) -> tuple[int, int, int, int]:
        """What of it is the same at all workers."""
        return self.micro_batches, self.micro_batch_size, self.steps, self.seed

    @property
    def is_through(self) -> bool:
        """No step is left to make."""
        return self.ended or self.step >= self.steps

    def __iter__(self) -> Iterator[Batch]:
        """The batch of the next step, until all are done. Raises ValueError where nobody makes steps of them: it would
        give the same one for ever."""
        given, step = 0, self.step
        while not self.is_through:
            if self.step != step:
                given, step = 0, self.step
            if given == UNSTEPPED_MAX:
                raise ValueError(
                    f"the batch of step {step + 1} was given {given} times, and model.step(batch) was never called; "
                    "call it for each batch, and make no list of them: a batch is what the next step trains"
                )
            given += 1
            yield Batch(self)

    def check_phases(self, every: int) -> None:
        """Raises ValueError where the last phase of `every` local steps would not be complete; 0: there are none."""
        if every and self.steps % every:
            raise ValueError(
                f"{self.steps} steps are no whole number of phases of {every}; make steps= a multiple of every="
            )

    def read_part(self, part: int, parts: int) -> None:
        """From now on only this part of each micro-batch, of so many equal ones. Raises ValueError where there are
        none."""
        if self.micro_batch_size % parts:
            raise ValueError(
                f"a micro-batch of {self.micro_batch_size} samples cannot be dealt to the {parts} processes of a "
                f"device group; make micro_batch= a multiple of {parts}"
            )
        self.part, self.parts = part, parts

    def tries_others(self, vain: bool) -> None:
        """The round of a step is over. In `vain`: nobody gave anything to it, so it is still to come. With the same
        samples, which follow from the step, the same would come of it."""
        self.passed_over += vain

    def batch_of(self, step: int) -> int:
        """Number of the global batch that a step has, after which data and random numbers go."""
        return step + self.passed_over

    def samples(self, step: int, number: int) -> list[int]:
        """Indices into the data set."""
        epoch, within = divmod(self.batch_of(step), self.steps_an_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            key = f"{self.seed}/{epoch}".encode()
            self._epoch = (epoch, Permutation(len(self.dataset), key))
        permutation = self._epoch[1]
        first = (within * self.micro_batches + number) * self.micro_batch_size
        size = self.micro_batch_size // self.parts
        return [permutation[first + self.part * size + i] for i in range(size)]

    def micro_batch(self, step: int, number: int) -> Any:
        """These samples, collated as `torch.utils.data.DataLoader` does. What a data set draws with torch (another cut
        of a picture each time) is the same whoever reads them: of a pipeline the first stage reads what enters, the
        last one what is wanted."""
        with seeded(seed_of(self.seed, self.batch_of(step), number * self.parts + self.part, DATA)):
            return torch.utils.data.default_collate([self.dataset[i] for i in self.samples(step, number)])
