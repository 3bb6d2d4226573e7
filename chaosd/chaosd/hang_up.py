"""SIGHUP while no daemon listens to it: as it starts, between two of its lives, as it ends.

A daemon takes it for `chaosd reload`, a terminal that closes sends it, and the system's own answer to it is to end the
process: a reload that comes a moment too early, or too late, would be a stop, and for systemd one that was wanted.
"""

from __future__ import annotations

import signal


def ends_nothing() -> None:
    """From now on, until somebody listens. Ignored, and not handled by Python, which ends before its process does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
