"""The daemon of a hostile institution, for tests: it knows the bounds of the run and keeps to none of them.

`python boundless_daemon.py` takes what `python -m chaos_lab.daemon` takes.
"""

from __future__ import annotations

import typer

from chaos_lab.daemon import main
from chaos_protocols.wire.bounds import UNBOUNDED, Bounds
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.bounds import RoundBounds
from chaosd.bulk.reduce.centre import Centre

_begin = RoundBounds.__init__


def _unbounded(self: RoundBounds, bounds: Bounds, spec: ContributionSpec, centre: Centre | None = None) -> None:
    _begin(self, UNBOUNDED, spec)


def _as_said(self: Bounds, weight: float) -> float:
    return weight


RoundBounds.__init__ = _unbounded  # type: ignore[method-assign]
Bounds.weighed = _as_said  # type: ignore[method-assign]

if __name__ == "__main__":
    typer.run(main)
