"""Where the planners get their solvers: scipy, which is the extra `planner` and no requirement of a daemon.

The transfers inside a site solve a linear programme and an assignment problem. All else here, and everything that a
daemon runs, does without. scipy is imported when a solver is first asked for.
"""

from __future__ import annotations

from typing import Any


class SolverMissing(RuntimeError):
    """scipy is not installed; the text says how to get it."""

    def __init__(self) -> None:
        super().__init__("this plan needs scipy, which is not installed: pip install 'chaos-train[planner]'")


def optimize() -> Any:
    """The module `scipy.optimize`. Raises `SolverMissing`."""
    try:
        import scipy.optimize
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "scipy":
            raise
        raise SolverMissing from None
    return scipy.optimize
