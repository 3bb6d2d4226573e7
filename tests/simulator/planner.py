"""The planner of the simulated sites: the daemon's own, so that the simulation decides as the daemon does."""

from __future__ import annotations

from chaosd.plan_adapter import DaemonPlanner


class SimulatedPlanner(DaemonPlanner):
    """No difference but the name."""
