"""The common model, which patients a hospital looks at in a round, and how good the model is.

Everything here depends on its arguments alone, so a run over any sites can be replayed in one process.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from blake3 import blake3
from heart_data import FEATURES, Array, Patients
from torch import nn

HIDDEN = 16
LEARNING_RATE = 0.001
WEIGHT_DECAY = 1.0
BATCH_SIZE = 32


def new_model(seed: int) -> nn.Module:
    """float64, so that the order of summation shows only in the last digits. The same seed gives the same bits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(FEATURES, HIDDEN, dtype=torch.float64), nn.Tanh(), nn.Linear(HIDDEN, 1, dtype=torch.float64)
        )


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def batch_of(patients: Patients, *, hospital: str, seed: int, round: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The patients that a hospital looks at in a round: features and targets; a function of (hospital, seed, round)."""
    key = hashlib.sha256(f"{seed} {hospital} {round}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(key[:8], "big")))
    chosen = generator.choice(len(patients.sick), size=min(BATCH_SIZE, len(patients.sick)), replace=False)
    return torch.from_numpy(patients.features[chosen]), torch.from_numpy(patients.sick[chosen])


def loss_of(model: nn.Module, features: torch.Tensor, sick: torch.Tensor) -> torch.Tensor:
    """Mean over the patients, so that weights by number of patients make the mean over all of them."""
    return nn.functional.binary_cross_entropy_with_logits(model(features).squeeze(1), sick)


def scores_of(model: nn.Module, patients: Patients) -> Array:
    with torch.no_grad():
        scores: Array = model(torch.from_numpy(patients.features)).squeeze(1).numpy()
    return scores


def area_under_roc(scores: Array, sick: Array) -> float:
    """Chance that a sick patient scores higher than a healthy one, ties count half (Mann-Whitney, by ranks)."""
    positives = int(sick.sum())
    negatives = len(sick) - positives
    if positives == 0 or negatives == 0:
        raise ValueError("the area under the ROC curve needs sick and healthy patients")
    _values, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]  # equal scores share the mean of their ranks
    return float((ranks[sick > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def parameters_digest(model: nn.Module) -> str:
    """BLAKE3 of all parameters: equal on two sites exactly if their models are, bit for bit."""
    digest = blake3()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
