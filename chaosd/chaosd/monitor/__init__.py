"""Measures links. Membership is decided elsewhere."""

from __future__ import annotations

from chaosd.monitor.probe import LinkProbe, ProbeError, ProbeResult

__all__ = ["LinkProbe", "ProbeError", "ProbeResult"]
