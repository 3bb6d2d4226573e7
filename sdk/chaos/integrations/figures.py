"""What a foreign training loop logs, as figures for the operator (`Coordinator.log`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from chaos_protocols.wire.worker import FIGURES_MAX

NAME_CHARACTERS_MAX = 32


def figures_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among them, under names that a figure may have; the first FIGURES_MAX."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        plain = re.sub(r"[^A-Za-z0-9_.]", "_", name)[:NAME_CHARACTERS_MAX]
        if math.isfinite(number) and len(found) < FIGURES_MAX and not plain[:1].isdigit():
            found[plain] = number
    return found
