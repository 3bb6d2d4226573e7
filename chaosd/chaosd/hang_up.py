"""SIGHUP while no daemon listens to it: as it starts, between two of its lives, as it ends.

A daemon takes it for `chaosd reload`, a terminal that closes sends it, and the system's own answer to it is to end the
process: a reload that comes a moment too early, or too late, would be a stop, and for systemd one that was wanted.
"""

from __future__ import annotations

import atexit
import signal


def ends_nothing() -> None:
    """From now on, until somebody listens. Heard and forgotten: what is ignored, programs that are started go on to
    ignore. But Python ends before its process does, and hears nothing from then on."""
    signal.signal(signal.SIGHUP, _forget)
    atexit.unregister(_ignore)
    atexit.register(_ignore)


def _forget(*_: object) -> None:
    return


def _ignore() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
