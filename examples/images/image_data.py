"""Fashion-MNIST from its four files, as pictures of 32x32x3, and the share of it that one site has."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils.data import TensorDataset

HERE = Path(__file__).parent / "fashion"
"""The first 1,000 pictures to train on and the first 500 to test on, from the data set's own files."""

PICTURES, LABELS = 0x0803, 0x0801
"""What the files begin with: bytes in three dimensions, and in one."""

SIDE = 28
MEAN, DEVIATION = 0.286, 0.353
"""Of the 60,000 pictures to train on, of values from 0 to 1."""

DIRICHLET = 0.3


class BadData(Exception):
    """A file is not there, or is none of this data set."""


def load(folder: Path, part: str) -> TensorDataset:
    """`part`: "train" or "t10k". Pictures [count, 3, 32, 32], float32: the one grey channel three times, padded with
    its black; labels [count], int64. Raises BadData."""
    grey = _read(folder / f"{part}-images-idx3-ubyte.gz", PICTURES)
    labels = _read(folder / f"{part}-labels-idx1-ubyte.gz", LABELS)
    if len(grey) != len(labels) * SIDE * SIDE:
        raise BadData(f"{folder}: {len(labels)} labels of {part}, but {len(grey) / SIDE / SIDE:g} pictures")
    pictures = torch.from_numpy(grey.reshape(-1, 1, SIDE, SIDE).astype(np.float32)) / 255
    padded = functional.pad((pictures - MEAN) / DEVIATION, (2, 2, 2, 2), value=-MEAN / DEVIATION)
    return TensorDataset(padded.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(labels.astype(np.int64)))


def shares(labels: NDArray[np.int64], sites: int, size: int, *, unlike: bool, seed: int) -> list[NDArray[np.int64]]:
    """For each site the numbers of its pictures: `size` each, no picture twice. `unlike`: a site has more of some
    classes than of others, by a Dirichlet distribution (0.3); what a class lacks comes from the one that has most left.
    Raises BadData if there are too few."""
    if sites * size > len(labels):
        raise BadData(f"{sites} sites with {size} pictures each need {sites * size}, and there are {len(labels)}")
    random = np.random.RandomState(1000 + seed)
    if not unlike:
        return list(random.permutation(len(labels))[: sites * size].reshape(sites, size))
    left = [list(random.permutation(np.flatnonzero(labels == label))) for label in range(10)]
    found = []
    for _ in range(sites):
        share: list[int] = []
        for label, count in enumerate(random.multinomial(size, random.dirichlet([DIRICHLET] * 10))):
            share += [left[label].pop() for _ in range(min(int(count), len(left[label])))]
        while len(share) < size:
            share.append(max(left, key=len).pop())
        found.append(np.array(share))
    return found


def _read(path: Path, kind: int) -> NDArray[np.uint8]:
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise BadData(
            f"{path}: {getattr(error, 'strerror', None) or error}; --data names a folder with the four files of "
            "Fashion-MNIST (Debian, Ubuntu: apt-get install dataset-fashion-mnist, then "
            "--data /usr/share/datasets/fashion-mnist)"
        ) from error
    dimensions = kind & 0xFF
    head = np.frombuffer(data[: 4 + 4 * dimensions], dtype=">u4")
    body = np.frombuffer(data, dtype=np.uint8, offset=min(len(data), 4 + 4 * dimensions))
    sizes = head[1:].tolist()
    if len(head) != 1 + dimensions or head[0] != kind or len(body) != np.prod(sizes) or sizes[1:] not in ([], [28, 28]):
        raise BadData(f"{path}: is no file of Fashion-MNIST")
    return body
