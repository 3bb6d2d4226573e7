"""The file that `chaosd run --plan` names: read, or refused with what is wrong with it and how one is made."""

from __future__ import annotations

import json
from pathlib import Path

from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaosd.os_errors import brief

EXAMPLE = (
    '{"policy": "reroute", "pipelines": [{"stages": [{"worker": 0, "first_layer": 0, "last_layer": 3}, '
    '{"worker": 1, "first_layer": 3, "last_layer": 6}], "micro_batches": 8}]}'
)
REMEDY = (
    "Leave --plan out, and the planner chooses (--dp and --pp give the shape); redirect `chaosd plan --json` into it; "
    f"or write it by hand: {EXAMPLE}"
)


class UnusablePlan(Exception):
    """The text names the file, what is wrong with it, and the remedy."""


def read_plan(path: Path) -> ExecutionPlan:
    """The plan alone, or what `chaosd plan --json` has printed. Raises `UnusablePlan`."""
    try:
        return _plan(path)
    except OSError as error:
        raise UnusablePlan(f"{path} cannot be read: {brief(error)}. {REMEDY}") from error
    except ValueError as error:
        raise UnusablePlan(f"{path} {error}. {REMEDY}") from error


def _plan(path: Path) -> ExecutionPlan:
    """Raises ValueError: the predicate of a sentence about the file."""
    data = _read(path.read_bytes())
    found = data.get("plan", data) if isinstance(data, dict) else data
    if not isinstance(found, dict):
        kind = "null" if found is None else "a list" if isinstance(found, list) else "a value"
        raise ValueError(f"is no plan: it has {kind} where an object with policy and pipelines should be")
    try:
        return ExecutionPlan.from_json(found)
    except ValueError as error:
        raise ValueError(f"is no plan: {error}") from error


def _read(content: bytes) -> object:
    if not content.strip():
        raise ValueError("is empty")
    try:
        data: object = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError("is no JSON: it is no text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("is no JSON: its brackets stand within each other too deep") from error
    return data
