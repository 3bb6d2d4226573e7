"""A linear programme whose columns come one after the other: maximise gains @ x with uses @ x <= limits, x >= 0.

Driven by `packing`, whose programmes are small (a row for each link) and solved hundreds of times, each a little
different from the one before: the revised simplex method goes on from the last basis, in tens of microseconds a step,
where a general solver's checks alone take milliseconds; and a daemon needs no more than numpy for it. Limits that are
equal make vertices at which the method may walk in circles: each is moved by its own part of a millionth.

Source: Dantzig 1963; explicit inverse, made anew every REFACTOR_EVERY steps.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-9
"""Of reduced costs and of pivots, where limits and gains are about 1."""

SHIFT_MAX = 1e-6
"""Share by which limits are moved apart."""

REFACTOR_EVERY = 64
STEPS_A_ROW_MAX = 200
"""A programme that takes more steps is given up: it walks in circles, or its numbers are beyond the tolerance."""


class Programme:
    """See the module. `values`: of the columns, in the order in which they came; `prices`: of the rows."""

    def __init__(self, limits: Floats) -> None:
        """`limits`: one for each row, 0 or more."""
        rows = len(limits)
        shifts = np.modf((np.arange(rows) + 1.0) * (math.sqrt(5) - 1) / 2)[0]
        self._limits: Floats = limits * (1.0 + SHIFT_MAX * shifts)
        self._inverse: Floats = np.eye(rows)
        self._basic: Floats = self._limits.copy()
        """Values of the basis, row by row."""
        self._basis = np.arange(rows) - rows
        """Which column is basic in each row; the slack of row i is -rows + i."""
        self._uses: Floats = np.empty((rows, 0))
        self._gains: Floats = np.empty(0)
        self._steps = 0

    @property
    def values(self) -> Floats:
        found = np.zeros(len(self._gains))
        chosen = self._basis >= 0
        found[self._basis[chosen]] = np.maximum(self._basic[chosen], 0.0)
        return found

    @property
    def prices(self) -> Floats:
        return np.maximum(self._row_prices(), 0.0)

    def add(self, uses: Floats, gains: Floats) -> None:
        """Columns of `uses` (rows x columns) and what each is worth. `solve` goes on from where it was."""
        self._uses = np.hstack([self._uses, uses])
        self._gains = np.append(self._gains, gains)

    def solve(self) -> None:
        """Raises ArithmeticError where no optimum is found."""
        rows = len(self._limits)
        for _ in range(STEPS_A_ROW_MAX * (rows + 1)):
            prices = self._row_prices()
            reduced = np.append(self._gains - prices @ self._uses, -prices)
            entering = int(np.argmax(reduced))
            if reduced[entering] <= TOLERANCE:
                return
            if entering < len(self._gains):
                self._pivot(entering, self._inverse @ self._uses[:, entering])
            else:
                row = entering - len(self._gains)
                self._pivot(row - rows, self._inverse[:, row].copy())
        raise ArithmeticError(f"the programme of {len(self._gains)} columns and {rows} rows was not solved")

    def _row_prices(self) -> Floats:
        gains = np.zeros(len(self._basis))
        chosen = self._basis >= 0
        gains[chosen] = self._gains[self._basis[chosen]]
        priced: Floats = gains @ self._inverse
        return priced

    def _pivot(self, entering: int, direction: Floats) -> None:
        limiting = direction > TOLERANCE
        if not limiting.any():
            raise ArithmeticError("the programme has no limit")
        ratios = np.full(len(direction), np.inf)
        ratios[limiting] = np.maximum(self._basic[limiting], 0.0) / direction[limiting]
        tied = ratios <= ratios.min() + TOLERANCE
        row = int(np.argmax(np.where(tied, direction, 0.0)))  # the largest pivot is the most exact one
        self._basis[row] = entering
        self._steps += 1
        if self._steps % REFACTOR_EVERY == 0:
            self._refactor()
            return
        pivot = self._inverse[row] / direction[row]
        step = self._basic[row] / direction[row]
        self._inverse -= np.outer(direction, pivot)
        self._inverse[row] = pivot
        self._basic -= direction * step
        self._basic[row] = step

    def _refactor(self) -> None:
        columns = np.eye(len(self._basis))
        chosen = self._basis >= 0
        slack = ~chosen
        matrix = np.empty_like(columns)
        matrix[:, chosen] = self._uses[:, self._basis[chosen]]
        matrix[:, slack] = columns[:, self._basis[slack] + len(self._basis)]
        self._inverse = np.linalg.inv(matrix).astype(np.float64)
        self._basic = self._inverse @ self._limits
