"""Patients of one hospital as numbers. A hospital reads only its own rows, and needs nothing of the others to prepare
them.

Missing values are the rule outside Cleveland (Switzerland has no cholesterol at all), so every measured value comes
with a flag, and an unknown category is all zeros. The centres and scales are round figures chosen beforehand: computed
from data they would have to be agreed between the hospitals.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DATA_FILE = Path(__file__).with_name("heart_disease.csv")
HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")

MEASURED = {  # column: (centre, scale)
    "age": (55.0, 10.0),
    "trestbps": (130.0, 20.0),
    "chol": (240.0, 50.0),
    "thalch": (140.0, 25.0),
    "oldpeak": (1.0, 1.0),
    "ca": (1.0, 1.0),
}
ZERO_IS_MISSING = frozenset({"trestbps", "chol"})
"""Nobody lives without blood pressure or cholesterol: 0 means that nobody measured."""

CATEGORIES = {
    "sex": ("Male", "Female"),
    "cp": ("typical angina", "atypical angina", "non-anginal", "asymptomatic"),
    "fbs": ("TRUE", "FALSE"),
    "restecg": ("normal", "st-t abnormality", "lv hypertrophy"),
    "exang": ("TRUE", "FALSE"),
    "slope": ("upsloping", "flat", "downsloping"),
    "thal": ("normal", "fixed defect", "reversable defect"),
}
FEATURES = 2 * len(MEASURED) + sum(len(values) for values in CATEGORIES.values())
TEST_FRACTION = 0.3

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patients:
    """`features` [patients, FEATURES]; `sick` [patients]: 1.0 if the arteries are narrowed (`num` > 0)."""

    features: Array
    sick: Array


def load(hospital: str, path: Path = DATA_FILE) -> tuple[Patients, Patients]:
    """Training and test patients of one hospital. Raises ValueError on a hospital that is not in the file."""
    if hospital not in HOSPITALS:
        raise ValueError(f"unknown hospital {hospital!r}; the data has {', '.join(HOSPITALS)}")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == hospital]
    test_ids = _test_ids(rows)
    return (
        _patients([row for row in rows if row["id"] not in test_ids]),
        _patients([row for row in rows if row["id"] in test_ids]),
    )


def _test_ids(rows: list[dict[str, str]]) -> set[str]:
    """The same share of the sick and of the healthy, in the order of a fixed hash: in Switzerland only 8 of 123 are
    healthy."""
    chosen: set[str] = set()
    for sick in (False, True):
        ids = sorted((row["id"] for row in rows if _sick(row) is sick), key=_hash)
        chosen.update(ids[: max(1, round(TEST_FRACTION * len(ids)))])
    return chosen


def _hash(patient: str) -> str:
    return hashlib.sha256(f"chaos heart {patient}".encode()).hexdigest()


def _sick(row: dict[str, str]) -> bool:
    return int(row["num"]) > 0


def _patients(rows: list[dict[str, str]]) -> Patients:
    return Patients(
        features=np.array([_features(row) for row in rows], dtype=np.float64),
        sick=np.array([float(_sick(row)) for row in rows], dtype=np.float64),
    )


def _features(row: dict[str, str]) -> list[float]:
    numbers: list[float] = []
    for column, (centre, scale) in MEASURED.items():
        text = row[column]
        missing = not text or (column in ZERO_IS_MISSING and float(text) == 0.0)
        numbers += [0.0, 1.0] if missing else [(float(text) - centre) / scale, 0.0]
    for column, values in CATEGORIES.items():
        numbers += [float(row[column] == value) for value in values]
    return numbers
